"""Who competes? Every limit at its published defaults, and with other settings on demand."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec

from loadgate import limits


class Contender(msgspec.Struct, frozen=True):
    """A limit with its settings.

    Attributes:
        label: What the table calls it.
        algorithm: Its name in `loadgate.limits`.
        settings: Keyword arguments of `loadgate.limits.create`.
    """

    label: str
    algorithm: str
    settings: dict[str, Any] = {}

    def create(self, initial: int | None = None) -> limits.Limit:
        """Make it, fresh.

        Args:
            initial: Where the scenario wants it to start; moved into its bounds.
        """
        settings = dict(self.settings)
        if initial is not None:
            low, high = settings.get("min", 1), settings.get("max", 1000)
            settings["initial"] = max(low, min(initial, high))
        return limits.create(self.algorithm, **settings)


def contenders(words: Sequence[str] = ()) -> tuple[Contender, ...]:
    """Those named in `words`, as ``name`` or ``name:key=value``; all of them by default.

    Gradient2 competes in both of its published forms: behind a sample window of a second, as
    its users get it, and sample by sample.
    """
    names = list(words) or [
        "adaptive",
        *(name for name in limits.ALGORITHMS if name != "adaptive"),
        "gradient2:window=none",
    ]
    return tuple(_contender(name) for name in names)


def _contender(word: str) -> Contender:
    name, *pairs = word.split(":")
    settings = dict(limits.PUBLISHED.get(name, {}))
    for pair in pairs:
        key, _, text = pair.partition("=")
        settings[key] = _value(text)
    return Contender(word, name, settings)


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
