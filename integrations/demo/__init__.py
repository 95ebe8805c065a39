"""The demo: one service, the same traffic twice, first without loadgate and then with it."""
