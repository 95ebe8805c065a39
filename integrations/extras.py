"""What is missing when an integration does not import? The extra that brings it."""

from __future__ import annotations

from typing import Final

# The extra of each optional package that a module of ours imports at once.
EXTRAS: Final = {
    "coredis": "redis",
    "httpx": "httpx",
    "opentelemetry": "otel",
    "prometheus_client": "prometheus",
}


def missing(what: str, error: ModuleNotFoundError, extra: str = "") -> ModuleNotFoundError:
    """The error to raise in place of `error`: it names the extra.

    Args:
        what: The module of ours that was imported.
        error: What Python says.
        extra: The extra to name, if it is not the one that brings the package alone.

    Returns:
        An error with the same `name`; `error` itself if no extra of ours brings the module.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    return ModuleNotFoundError(
        f"{what} needs {package}, which is not installed; "
        f"run: pip install 'loadgate[{extra or EXTRAS[package]}]'",
        name=error.name,
    )
