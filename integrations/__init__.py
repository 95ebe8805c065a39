"""Adapters: how loadgate meets frameworks, servers and stores. No core module imports these."""
