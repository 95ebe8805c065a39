"""Where do the dashboards and rules come from? From here; `python -m` this folder writes them.

For development only: it needs grafana-foundation-sdk. What it writes lies beside it (`grafana/`,
`prometheus/`), is committed, and needs nothing.
"""
