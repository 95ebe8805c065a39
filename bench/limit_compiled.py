"""Must the benchmark wait for the interpreter? Not where a C compiler is at hand.

    python -m bench.limit_compiled --seeds 10 --tuned --write

does what `bench.limits` does, with the simulator, the admission and the published limits in
machine code, made from the same files by mypyc (a part of mypy; it takes setuptools and a C
compiler). Before anything is believed, short runs of all scenarios are made by both, compiled
and as they are, and every byte of them is compared. Keys of kept runs are the same, too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import loadgate
from bench import limit_kept
from bench.limit_moved import shortened
from bench.limit_run import QUEUES
from bench.limit_settings import contenders
from bench.limits import load
from loadgate.simulation.run import Record, policy_for, requests, simulate

ROOT: Final = Path(__file__).parent.parent
KEEP: Final = ROOT / "out" / "compiled"

# What a run spends its time in, beside the admission. Not here: the structs of a run, which are C
# already, and the default limit, which changes more often than it would pay.
_MORE: Final = (
    "limits/aimd.py", "limits/bbr.py", "limits/envoy.py", "limits/fixed.py",
    "limits/gradient2.py", "limits/sampled.py", "limits/vegas.py",
    "simulation/engine.py", "simulation/stages.py", "telemetry.py",
)  # fmt: skip
_LIMITS: Final = ("aimd", "bbr", "envoy-gradient", "fixed", "gradient2", "vegas")
# Long enough for a queue to stand and a limit to move, in every scenario.
_REQUESTS: Final = 3_000

_SETUP: Final = """\
from mypyc.build import mypycify
from setuptools import setup

files = {files!r}
setup(name="compiled", ext_modules=mypycify(["--follow-imports=silent", *files]), packages=[])
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, compare, and hand over to `bench.limits`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--digest"]:
        print(digest())
        return 0
    folder = compiled()
    try:
        return _run(folder, words)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, words: list[str]) -> int:
    faster = os.environ | {"PYTHONPATH": str(folder)}
    found = {name: _digest_in(env) for name, env in (("as is", os.environ), ("compiled", faster))}
    if len(set(found.values())) > 1 or any(each.startswith("failed") for each in found.values()):
        print(f"compiled runs are not the same: {found}", file=sys.stderr)
        return 2
    print(f"short runs are the same, compiled and as they are: {found['compiled']}")
    command = [sys.executable, "-m", "bench.limits", *words]
    return subprocess.run(command, cwd=ROOT, env=faster, check=False).returncode


def modules() -> list[str]:
    """The files to compile: the admission, whatever it is made of, the engine and the limits."""
    source = Path(str(loadgate.__file__)).parent
    admission = {
        str(file.relative_to(source))
        for file in limit_kept.files_of_runs()
        if file.parent.name != "simulation" and "(msgspec.Struct" not in file.read_text("utf-8")
    }
    return sorted({*admission, *_MORE})


def compiled() -> Path:
    """A folder with the package as it is now and its compiled modules, for `PYTHONPATH`."""
    source = Path(str(loadgate.__file__)).parent
    codes = [limit_kept.of_runs(), *(limit_kept.of_limit(name) for name in _LIMITS)]
    built = KEEP / f"built-{limit_kept.key_of(codes, modules())}"
    if not built.exists():
        _build(source, built)
    # A folder of its own for each command: files may change while it runs.
    KEEP.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=KEEP))
    _copy(source, folder / "loadgate")
    for library in built.rglob("*.so"):
        shutil.copy(library, folder / library.relative_to(built))
    return folder


def digest() -> str:
    """A hash of everything that short runs of all scenarios give, byte by byte."""
    found = hashlib.blake2b(digest_size=12)
    for _, scenario in load():
        short = shortened(scenario, _REQUESTS)
        base = policy_for(short)
        work = requests(short, 1, base)
        for queue in QUEUES.values():
            policy = msgspec.structs.replace(base, queue=queue)
            for contender in contenders(_LIMITS):
                limit = contender.create(policy.concurrency.initial)
                _add(found, simulate(short, policy, 1, limit=limit, workload=work))
    return found.hexdigest()


def _add(found: hashlib.blake2b, record: Record) -> None:
    gauges = record.gauges
    for array in (
        record.verdict, record.latency, record.wait, record.reason,
        gauges.times, gauges.limit, gauges.in_flight, gauges.waiting,
    ):  # fmt: skip
        found.update(np.ascontiguousarray(array).tobytes())
    counted = [{str(reason): n for reason, n in each.items()} for each in record.refusals]
    # mypyc makes floats of whole numbers in places where the interpreter does not: same values.
    said = {
        name: float(value) if isinstance(value, int | float) else str(value)
        for name, value in record.explanation.items()
    }
    plain = [record.attempts, counted, record.held.hex(), record.wasted.hex(), said]
    found.update(msgspec.json.encode(plain))


def _digest_in(env: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "bench.limit_compiled", "--digest"]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True)
    return done.stdout.strip() or f"failed: {done.stderr.strip()[-200:]}"


def _build(source: Path, built: Path) -> None:
    KEEP.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEEP) as name:
        work = Path(name)
        _copy(source, work / "loadgate")
        files = [f"loadgate/{file}" for file in modules()]
        (work / "setup.py").write_text(_SETUP.format(files=files), encoding="utf-8")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(
            command, cwd=work, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            raise SystemExit(f"mypyc could not compile:\n{done.stdout.decode(errors='replace')}")
        shutil.rmtree(work / "build", ignore_errors=True)
        for library in work.rglob("*.so"):
            target = built.with_suffix(".part") / library.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    built.with_suffix(".part").replace(built)


def _copy(source: Path, target: Path) -> None:
    """The package without what only servers need, and without anything compiled."""
    ignored = shutil.ignore_patterns("integrations", "dashboards", "__pycache__", "*.so")
    shutil.copytree(source, target, ignore=ignored)


if __name__ == "__main__":
    raise SystemExit(main())
