"""The README and the docs are true: code runs, policies are valid, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadgate import Policy

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks(ROOT / "README.md", "python"))))
def test_the_python_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(blocks(ROOT / "README.md", "python")[number])
    ended = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 0, ended.stderr


def test_the_policy_of_the_readme_is_valid() -> None:
    (text,) = blocks(ROOT / "README.md", "toml")
    policy = Policy.from_mapping(tomllib.loads(text))
    assert policy.rates[0].burst == 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets
