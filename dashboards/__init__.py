"""Dashboards, rules and alerts as files, and the code that makes them."""
