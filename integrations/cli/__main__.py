"""``python -m loadgate.integrations.cli`` is the same as ``loadgate``."""

from loadgate.integrations.cli import main

main()
