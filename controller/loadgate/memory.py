"""How much memory is used, and how much may be?

For a number of bytes the resident memory of this process counts. For `container` it is the
container's working set, as the kubelet computes it: what its control group uses, less the pages
of files that the kernel can drop; several workers in one container share its bound.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_STATM = Path("/proc/self/statm")
_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")

# A control group without a bound says "max" (v2) or nearly 2 ** 63 (v1); no machine has a
# petabyte.
_NO_BOUND = 1 << 50


class Memory:
    """Memory in use beside its bound.

    Args:
        bound: Bytes, or `container`.
        root: Where control groups are mounted; only tests change it.

    Attributes:
        bound: Bytes; None if there is no bound or it cannot be read.
    """

    __slots__ = ("_current", "_stat", "bound")

    def __init__(self, bound: int | Literal["container"], root: Path = _ROOT) -> None:
        self._current: Path | None = None
        self._stat: Path | None = None
        if isinstance(bound, int):
            self.bound: int | None = bound
            return
        self.bound = None
        for folder, limit, current in _candidates(root):
            found = _number(folder / limit)
            if found is not None and found < _NO_BOUND:
                self.bound = found
                self._current, self._stat = folder / current, folder / "memory.stat"
                return

    def used(self) -> int | None:
        """Bytes in use, None if that cannot be read here."""
        if self._current is None or self._stat is None:
            try:
                return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, ValueError, IndexError):
                return None
        used = _number(self._current)
        return None if used is None else max(0, used - _inactive_file(self._stat))


def _candidates(root: Path) -> list[tuple[Path, str, str]]:
    """Folder, bound and usage of this process' control group, of version 2 and 1."""
    v2, v1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    inside = ""
    try:
        for line in _GROUPS.read_text().splitlines():
            if line.startswith("0::/"):
                inside = line[4:]
    except OSError:
        pass  # no control groups: no candidate will exist either
    return [(root / inside, *v2), (root, *v2), (root / "memory", *v1)]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file(stat: Path) -> int:
    """Bytes of file pages that the kernel can drop."""
    try:
        for line in stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in {"inactive_file", "total_inactive_file"}:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
