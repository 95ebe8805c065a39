"""``python -m loadgate`` is the same as ``loadgate``."""

from loadgate.integrations.cli import main

main()
