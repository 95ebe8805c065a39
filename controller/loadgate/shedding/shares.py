"""How many places may a class count on, and how many may one client hold?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import ceil


class ClassShare:
    """One priority class: its reserved share of the places, and those it occupies."""

    __slots__ = ("in_flight", "reserve")

    def __init__(self, reserve: float = 0.0) -> None:
        self.reserve = reserve
        self.in_flight = 0

    def owed(self, places: int) -> int:
        """Places it may still claim before anybody else; negative when it has borrowed."""
        return ceil(self.reserve * places - 1e-9) - self.in_flight


class Reserves:
    """Shares of the places that classes can count on.

    A class that has waiters and occupies fewer places than reserved for it is next, whatever
    its priority, and its waiters do not have to go. What it does not use is borrowed by whoever
    is next otherwise, and taken back as places become free: nobody who runs is stopped.

    Args:
        names: The priority classes, highest first.
        reserve: Reserved share in (0, 1) by class name; the others have none.
    """

    __slots__ = ("_by_name", "classes")

    def __init__(self, names: Sequence[str], reserve: Mapping[str, float]) -> None:
        self._by_name: dict[str, ClassShare] = {}
        self.classes: list[ClassShare] = []
        self.follow(names, reserve)

    def follow(self, names: Sequence[str], reserve: Mapping[str, float]) -> None:
        """Go on with other classes or shares: those who run stay counted under their name."""
        kept = self._by_name
        self._by_name = {name: kept.get(name) or ClassShare() for name in names}
        for name, share in self._by_name.items():
            share.reserve = reserve.get(name, 0.0)
        self.classes = list(self._by_name.values())

    def of(self, level: int) -> ClassShare:
        """The books of a class."""
        return self.classes[min(level, len(self.classes) - 1)]

    def next_class(self, depth_of: Callable[[int], int], places: int) -> int | None:
        """The highest class that waits and is owed a place, None when none is."""
        for level, share in enumerate(self.classes):
            if share.reserve and share.owed(places) > 0 and depth_of(level):
                return level
        return None

    def protects(self, level: int, waiting: int, places: int) -> bool:
        """Whether so many waiters of a class are within what it is owed: none has to go."""
        share = self.of(level)
        return bool(share.reserve) and waiting <= share.owed(places)


class Holders:
    """How many places each client holds or waits for, and how many it may.

    Args:
        max_share: The share of all places that one client may hold, in (0, 1].
    """

    __slots__ = ("_held", "max_share")

    def __init__(self, max_share: float) -> None:
        self.max_share = max_share
        self._held: dict[Hashable, int] = {}

    def bound(self, places: int) -> int:
        """Places that one client may hold or wait for, at least 1."""
        return max(1, int(self.max_share * places + 1e-9))

    def held(self, client: Hashable) -> int:
        """Places that `client` holds or waits for."""
        return self._held.get(client, 0)

    def take(self, client: Hashable, places: int) -> None:
        """`client` holds or waits for `places` more."""
        self._held[client] = self._held.get(client, 0) + places

    def give_back(self, client: Hashable, places: int) -> None:
        """`client` has given back `places`; one that holds none is forgotten."""
        left = self._held.get(client, 0) - places
        if left > 0:
            self._held[client] = left
        else:
            self._held.pop(client, None)

    def total(self) -> int:
        """Places that all clients together hold or wait for."""
        return sum(self._held.values())
