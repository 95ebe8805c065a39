"""Which keys are remembered, within how many keys and bytes, and who shares when it is full?

State lives in plain dicts from key to one immutable object, because nothing in Python is
smaller or faster; a limiter reads and writes them itself. The table is asked only when a key is
unknown. There are 128 dicts, chosen by the key's hash, because Python copies a dict when it
outgrows its memory: one of a million keys stands still for 50 ms, one of 8,000 for half a
millisecond. Beside them stands a list of the keys, around which a hand walks a few steps per
request: keys that have long been as good as new are forgotten, without a thread, a timer or a
sweep. (CLOCK, Corbató 1968, with "is as good as new" for the reference bit.)

Eviction never rewards an attacker. Only an entry equal to a fresh one may go, so nobody gets
more by being forgotten. When the table is full and the hand finds no such entry, unknown keys
share overflow buckets, chosen by a keyed hash, each with the rate of one key.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from loadgate.decisions import Quota

State = TypeVar("State")

# Two steps for each new key: the hand moves faster than the table grows, so it comes round.
STEPS_ON_INSERT: Final = 2
# A full table may look at so many entries to let one key in. With a tenth of the entries
# replaceable a newcomer finds none with probability 0.9**16 = 0.19, with a third 0.0015.
STEPS_WHEN_FULL: Final = 16
# On known keys the hand moves only every eighth time, eight steps at once: one per request on
# average, and the call is paid for by eight requests.
REQUESTS_PER_WALK: Final = 8
STEPS_PER_WALK: Final = 8
# `count & WALK_MASK` is 0 when the hand moves.
WALK_MASK: Final = REQUESTS_PER_WALK - 1
# Idle keys stay this long beyond being as good as new. Forgetting at once would make a client
# that returns every second pay for a new entry each time; a full table does not wait for it.
IDLE_SECONDS: Final = 10.0
# What an attacker gains is at most the rate of so many keys more, and a newcomer during a full
# table shares with all that fall into the same one: the more, the better, at 100 bytes each.
OVERFLOW_SHARE: Final = 16
MAX_OVERFLOW: Final = 65_536
# A dict entry (24 bytes, 4 to 8 of index, a table between 1/3 and 2/3 full) and a list entry.
ENTRY_BYTES: Final = 70
# `shards[hash(key) >> SHARD_SHIFT]`: the upper seven bits, a number in [-64, 64) that is an index
# of 128 dicts as it stands. A dict begins with the lower bits, so they must not be the same for
# all of its keys. Text and bytes are hashed under a secret of the process. (Numbers are hashed
# modulo 2**61 - 1 where a hash has 64 bits, and modulo 2**31 - 1 where it has 32.)
SHARDS: Final = 128
SHARD_SHIFT: Final = (64 if hash(2**61 - 1) == 0 else 32) - 7


Key = str | bytes


class SharedBucket(bytes):
    """The key of a bucket that several share: equal only to itself, so no client can name it.

    It is bytes for the sake of those who only pass keys along.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)


class OverflowQuota(Quota, frozen=True, gc=False):
    """The receipt of a charge to an overflow bucket; `bucket` finds it again."""

    bucket: SharedBucket | None = None


class KeyTable(Generic[State]):
    """A bounded map from key to state.

    Attributes:
        shards: The dicts; their owner reads and writes the entries of placed keys directly, in
            `shards[hash(key) >> SHARD_SHIFT]`.
        forgotten: Idle keys dropped so far.
        evicted: Keys as good as new, dropped early to let another one in.
        overflowed: Decisions for unknown keys that went to an overflow bucket.

    Args:
        fresh: Whether a state equals a fresh one at a moment (in the owner's clock).
        state_bytes: Bytes of one state object, at most.
        max_keys: Most keys with an entry of their own, at least 1.
        max_bytes: Most bytes of keys and entries together.
    """

    __slots__ = (
        "_buckets",
        "_dropped",
        "_entry_bytes",
        "_fresh",
        "_hand",
        "_key_bytes",
        "_max_bytes",
        "_max_keys",
        "_ring",
        "_secret",
        "evicted",
        "forgotten",
        "overflowed",
        "shards",
    )

    def __init__(
        self,
        fresh: Callable[[State, float], bool],
        state_bytes: int,
        max_keys: int,
        max_bytes: int,
    ) -> None:
        self.shards: list[dict[object, State]] = [{} for _ in range(SHARDS)]
        self.forgotten = 0
        self.evicted = 0
        self.overflowed = 0
        self._fresh = fresh
        self._entry_bytes = state_bytes + ENTRY_BYTES
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._ring: list[Key] = []
        self._hand = 0
        self._dropped = 0  # as many were, when the hand last came round
        self._key_bytes = 0
        self._buckets: dict[int, SharedBucket] = {}
        # Python seeds the hash of text anew in each process: a secret without reading dice.
        self._secret = hash("loadgate overflow buckets").to_bytes(8, "little", signed=True)

    def __len__(self) -> int:
        """Keys with an entry of their own."""
        return len(self._ring)

    @property
    def size_bytes(self) -> int:
        """Bytes held for keys and entries, by the estimate that bounds them."""
        return self._key_bytes + len(self._ring) * self._entry_bytes

    def resize(self, max_keys: int, max_bytes: int) -> None:
        """Set new bounds. Entries beyond them go as they become as good as new."""
        self._max_keys = max_keys
        self._max_bytes = max_bytes

    def weigh(self, state_bytes: int) -> None:
        """Count each state as so many bytes from now on."""
        self._entry_bytes = state_bytes + ENTRY_BYTES

    def clear(self) -> None:
        """Forget everything."""
        for shard in self.shards:
            shard.clear()
        self._ring.clear()
        self._hand = self._key_bytes = 0

    def place(
        self, key: str | bytes, fresh_at: float, idle_at: float
    ) -> str | bytes | SharedBucket:
        """Make an entry for an unknown key; the caller sets its state at once, if it has none.

        Args:
            key: A key that was not found as it stands; a subclass of str may have hidden one. A
                shared bucket is its own place and never evicted.
            fresh_at: An entry that is fresh at this moment may be replaced if need be.
            idle_at: An entry that was already fresh at this moment is forgotten.

        Returns:
            The key, or the overflow bucket it has to share.

        Raises:
            TypeError: The key is neither str nor bytes.
        """
        key = plain(key)
        if isinstance(key, SharedBucket) or key in self.shards[hash(key) >> SHARD_SHIFT]:
            return key
        size = key.__sizeof__()
        if not self._is_full(size):
            self.walk(idle_at, STEPS_ON_INSERT)
        elif not self._make_room(size, fresh_at):
            self.overflowed += 1
            return self._bucket(key)
        self._ring.append(key)
        self._key_bytes += size
        return key

    def find(self, key: Key, fresh_at: float) -> Key:
        """Where `place` would put an unknown key, without changing anything."""
        key = plain(key)
        if isinstance(key, SharedBucket) or key in self.shards[hash(key) >> SHARD_SHIFT]:
            return key
        size = key.__sizeof__()
        if not self._is_full(size):
            return key
        ring, shards, hand = self._ring, self.shards, self._hand
        freed = keys = 0
        for step in range(min(STEPS_WHEN_FULL, len(ring))):
            known = ring[(hand + step) % len(ring)]
            if self._fresh(shards[hash(known) >> SHARD_SHIFT][known], fresh_at):
                keys += 1
                freed += known.__sizeof__() + self._entry_bytes
        fits = (
            len(ring) - keys < self._max_keys
            and self.size_bytes - freed + size + self._entry_bytes <= self._max_bytes
        )
        return key if fits else self._bucket(key)

    def walk(self, moment: float, steps: int) -> bool:
        """Move the hand and drop the entries on its way that were fresh at `moment`.

        Returns:
            Whether the hand came round and had found nothing to drop since it last did.
        """
        ring, shards, fresh, hand = self._ring, self.shards, self._fresh, self._hand
        before = len(ring)
        came_round = not ring
        for _ in range(min(steps, before)):
            key = ring[hand]
            shard = shards[hash(key) >> SHARD_SHIFT]
            if fresh(shard[key], moment):
                del shard[key]
                self._key_bytes -= key.__sizeof__()
                last = ring.pop()
                if hand < len(ring):
                    ring[hand] = last
            else:
                hand += 1
            if hand >= len(ring):
                hand = 0
                dropped = self.forgotten + before - len(ring)
                came_round = dropped == self._dropped
                self._dropped = dropped
                if not ring:
                    break
        self._hand = hand
        self.forgotten += before - len(ring)
        return came_round

    def _is_full(self, size: int) -> bool:
        count = len(self._ring) + 1
        held = self._key_bytes + size + count * self._entry_bytes
        return count > self._max_keys or held > self._max_bytes

    def _make_room(self, size: int, moment: float) -> bool:
        forgotten = self.forgotten
        for _ in range(STEPS_WHEN_FULL):
            self.walk(moment, 1)
            if not self._is_full(size):
                break
        self.evicted += self.forgotten - forgotten
        self.forgotten = forgotten
        return not self._is_full(size)

    def _bucket(self, key: Key) -> SharedBucket:
        data = b"s" + key.encode("utf-8", "surrogatepass") if isinstance(key, str) else b"b" + key
        digest = blake2b(data, digest_size=8, key=self._secret).digest()
        count = min(MAX_OVERFLOW, max(1, self._max_keys // OVERFLOW_SHARE))
        number = int.from_bytes(digest, "little") % count
        return self._buckets.setdefault(number, SharedBucket())


def plain(key: Key) -> Key:
    """`key` as exactly str or bytes, so that no subclass can redefine what it equals.

    A shared bucket is left as it is.

    Raises:
        TypeError: The key is neither str nor bytes.
    """
    if type(key) is str or type(key) is bytes or type(key) is SharedBucket:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # from users
        return bytes(key)
    raise TypeError(f"a rate counts str or bytes keys, not {type(key).__name__}: {key!r:.100}")


def overflow(quota: Quota, key: Key, bucket: SharedBucket) -> OverflowQuota:
    """The answer of an overflow bucket, as the receipt of the key that had to share it."""
    return OverflowQuota(
        quota.allowed,
        quota.limit,
        quota.remaining,
        quota.reset_after,
        quota.retry_after,
        "" if isinstance(key, SharedBucket) else key,
        quota.cost,
        quota.at,
        quota.rate,
        bucket,
    )


def receipt_key(quota: Quota) -> Key:
    """The entry that a receipt was charged to."""
    if isinstance(quota, OverflowQuota) and quota.bucket is not None:
        return quota.bucket
    return quota.key
