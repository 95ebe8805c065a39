"""Adapters: how loadgate meets frameworks, servers and stores. Nothing in the core imports these."""
