"""The tree holds together: links, one-way imports, pure rules."""

from __future__ import annotations

import ast
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "controller" / "loadgate"

RULES = [
    *(PACKAGE / "rates").rglob("*.py"),
    *(PACKAGE / "limits").rglob("*.py"),
    *(PACKAGE / "shedding").rglob("*.py"),
    *(PACKAGE / f"{name}.py" for name in ("decisions", "errors", "explain", "waiting")),
    *(
        PACKAGE / f"{name}.py"
        for name in (
            "admission",
            "telemetry",
            "ticket",
            "accounts",
            "entrance",
            "places",
            "long_lived",
            "turns",
        )
    ),
]

# Clocks, dice, event loops, sockets, the world: none of it may be read by a rule.
IMPURE = {
    "anyio", "asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "pathlib",
    "random", "secrets", "select", "signal", "socket", "subprocess", "sys", "tempfile",
    "threading", "time", "trio", "uvloop",
}  # fmt: skip

# Every floor may import from floors above it in this list (below it in the staircase).
STAIRCASE = [
    {"explain", "plain_fields"},
    {"errors"},
    {"limits", "rates", "shedding"},
    {"telemetry", "waiting", "ticket", "reading"},
    {"checks"},
    {"shared", "accounts", "long_lived"},
    {"entrance"},
    {"places"},
    {"turns"},
    {"admission", "policy", "signals", "memory", "brakes", "owner", "steady"},
    {"making"},
    {"permit", "asked", "asking_store", "looking", "cancelling"},
    {"controller", "guard", "snapshots", "wiring"},
    {"simulation", "testing"},
    {"integrations", "__main__"},
]


def imported(path: Path) -> set[str]:
    """Every module that `path` imports when it runs (not only for type checkers)."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute here"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


def floor_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("folder", ["integrations", "dashboards"])
def test_a_linked_folder_is_part_of_the_package(folder: str) -> None:
    assert files("loadgate").joinpath(folder, "__init__.py").is_file()
    assert (PACKAGE / folder).is_symlink()
    assert (PACKAGE / folder).resolve() == ROOT / folder


@pytest.mark.parametrize("path", RULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_rule_reads_no_clock_no_dice_and_no_event_loop(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & IMPURE


@pytest.mark.parametrize(
    "path",
    [p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_imports_go_down_the_staircase_only(path: Path) -> None:
    floors = {name: height for height, names in enumerate(STAIRCASE) for name in names}
    here = floor_of(path)
    if here in {"decisions", "dashboards"}:
        allowed = {"decisions", "dashboards"} & {here}
    else:
        allowed = {"decisions", here} | {
            n for n, height in floors.items() if height <= floors[here]
        }
    ours = {n.split(".")[1] for n in imported(path) if n.startswith("loadgate.")}
    names = {n for n in ours if (PACKAGE / n).exists() or (PACKAGE / f"{n}.py").exists()}
    assert names <= allowed, f"{here} must not import {names - allowed}"


def test_the_core_imports_no_framework() -> None:
    allowed = {"anyio", "msgspec", "trio", "numpy", "matplotlib", "loadgate"}
    standard = set(__import__("sys").stdlib_module_names)
    for path in PACKAGE.rglob("*.py"):
        if floor_of(path) in {"integrations", "dashboards"}:
            continue
        roots = {name.split(".")[0] for name in imported(path)}
        assert roots <= allowed | standard | {""}, path
