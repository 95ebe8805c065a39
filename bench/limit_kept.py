"""Which runs are known already? Results on disk, under everything that they depend on.

A run is virtual: equal code, scenario, seed and settings give equal bytes. So its result is kept
under a hash of all of them, and found again only if none has changed. Of the code, what is
hashed is what the run goes through and nothing else: a change of one limit does not touch the
runs of another. Comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

import loadgate
from loadgate.limits import ALGORITHMS
from loadgate.policy import Policy
from loadgate.signals import STALL
from loadgate.simulation.scenario import Scenario

T = TypeVar("T")

HERE: Final = Path(__file__).parent
_ROOT: Final = Path(str(loadgate.__file__)).parent

# Where a run begins, and what is imported from there without having a part in it: limits are
# hashed one by one, rates and traces only matter to scenarios that have some (`can_be_kept`),
# of the signals it is one number that matters, and the others read files or word messages.
_RUN: Final = ("loadgate.simulation.run", "loadgate.simulation.results")
_APART: Final = (
    "loadgate.errors", "loadgate.explain", "loadgate.limits", "loadgate.rates",
    "loadgate.reading", "loadgate.shared", "loadgate.signals", "loadgate.simulation.traces",
)  # fmt: skip

# What a scenario says for readers, and what is judged only after a run.
_WORDS: Final = ("title", "intent", "bounds", "variants", "folder")


class Kept(Generic[T]):
    """Results of one kind in a folder.

    Args:
        folder: Where; made when the first one is kept. None keeps nothing.
        kind: Their type.
        fresh: Find nothing, but keep what is new.
    """

    def __init__(self, folder: Path | None, kind: type[T], *, fresh: bool = False) -> None:
        self._folder = folder
        self._kind = kind
        self._fresh = fresh

    def get(self, key: str) -> T | None:
        """The result under this key, None if there is none."""
        if self._folder is None or self._fresh:
            return None
        try:
            text = (self._folder / f"{key}.msgpack").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.msgpack.decode(text, type=self._kind)

    def put(self, key: str, value: T) -> None:
        """Keep a result; a reader in another process sees all of it or nothing."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{key}.{os.getpid()}.part"
        part.write_bytes(msgspec.msgpack.encode(value))
        part.replace(self._folder / f"{key}.msgpack")


def can_be_kept(scenario: Scenario, policy: Policy) -> bool:
    """Whether a key says all that the run depends on: not with rates or arrivals from a file."""
    return scenario.trace is None and not policy.rates


def key_of(code: Sequence[str], *parts: Any) -> str:
    """The key of a result.

    Args:
        code: Hashes of the code (`of_runs`, `of_limit`, `of_bench`).
        parts: Everything else that it depends on, plain data.
    """
    versions = [platform.python_version(), np.__version__]
    told = msgspec.json.encode([versions, STALL, list(code), parts], order="sorted")
    return hashlib.blake2b(told, digest_size=12).hexdigest()


def plain(scenario: Scenario, *without: str) -> dict[str, Any]:
    """A scenario as data, but for what cannot change a run.

    Args:
        scenario: The scenario.
        without: More of its keys to leave out.
    """
    dropped = {*_WORDS, *without}
    data: dict[str, Any] = msgspec.to_builtins(scenario)
    return {key: value for key, value in data.items() if key not in dropped}


@cache
def of_runs() -> str:
    """A hash of the simulator, the judge's arithmetic and the admission, without any limit."""
    return _hash(files_of_runs())


def files_of_runs() -> list[Path]:
    """The modules behind that hash."""
    return _reached(_RUN, _APART)


@cache
def of_limit(algorithm: str) -> str:
    """A hash of one limit, of the modules in `loadgate.limits` it is made of, and the registry."""
    modules = _reached([ALGORITHMS[algorithm].__module__], within="loadgate.limits")
    return _hash([*modules, _ROOT / "limits" / "__init__.py"])


@cache
def of_bench(*names: str) -> str:
    """A hash of modules of the benchmark."""
    return _hash(HERE / f"{name}.py" for name in names)


def hash_now() -> None:
    """Hash all code at once: what a file holds later is not what this process has imported."""
    of_runs()
    for algorithm in ALGORITHMS:
        of_limit(algorithm)
    of_bench("limit_oracle")
    of_bench("limit_oracle", "limit_judge")
    of_bench("limit_tune", "limit_moved")


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.name.encode() + b"\0" + _code(file.read_text("utf-8")).encode())
    return digest.hexdigest()


@cache
def _code(text: str) -> str:
    """What a module does: its syntax without places, comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                first.value.value = ""
    return ast.dump(tree)


def _reached(
    begin: Sequence[str], apart: Sequence[str] = (), within: str = "loadgate"
) -> list[Path]:
    """The files of all modules that are imported from `begin` on, these included, by name."""
    found: dict[str, Path] = {}
    left = list(begin)
    while left:
        name = left.pop()
        outside = any(f"{name}.".startswith(f"{other}.") for other in apart)
        if name in found or outside or not name.startswith(f"{within}."):
            continue
        file = _file(name)
        if file is not None:
            found[name] = file
            left += _imports(file.read_text("utf-8"))
    return [found[name] for name in sorted(found)]


@cache
def _imports(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def _file(module: str) -> Path | None:
    place = _ROOT.joinpath(*module.split(".")[1:])
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None
