"""The README and the docs are true: code runs, policies are valid, links lead somewhere."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadgate import Policy
from tests.integrations.served import Served

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


@pytest.mark.parametrize("backend", ["uvloop", "asyncio", "trio"])
def test_the_hello_of_the_readme_is_served_and_logs_nothing(backend: str, tmp_path: Path) -> None:
    (block,) = (text for text in blocks(ROOT / "README.md", "python") if "async def app(" in text)
    hello = "\n".join(block.splitlines()[:-1])  # "the app above without its last line"
    (tmp_path / "policy.toml").write_text(blocks(ROOT / "README.md", "toml")[0])
    with Served(tmp_path, "--policy", "policy.toml", "--backend", backend, app=hello) as served:
        assert served.get("/").text == "hello\n"
        served.signal(signal.SIGTERM)
        assert served.ended() == 0
        logged = [line for line in served.log().splitlines() if " loadgate.serve: " not in line]
    assert logged == []


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
