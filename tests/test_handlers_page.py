"""The examples of docs/handlers.md run as they are pasted, on asyncio and trio."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "handlers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, backend: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[number].replace("run(main)", f'run(main, backend="{backend}")'))
    ended = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
