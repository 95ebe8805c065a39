"""The program of docs/serve.md runs as it is pasted, on asyncio and trio."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
SECTION = PAGE.read_text().partition("## In your own program")[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)

OWN = 'socket.create_server(("127.0.0.1", 8000))'


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_program_serves_until_it_is_told_to_stop(backend: str, tmp_path: Path) -> None:
    (program,) = BLOCKS
    assert OWN in program
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The port is bound here, so that nobody else can take it.
        script = tmp_path / "program.py"
        script.write_text(
            program.replace(OWN, f"socket.socket(fileno={listener.fileno()})").replace(
                "run(main)", f'run(main, backend="{backend}")'
            )
        )
        with subprocess.Popen(
            [sys.executable, "-W", "error", script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            pass_fds=[listener.fileno()],
        ) as served:  # fmt: skip
            try:
                host, port = listener.getsockname()
                assert httpx.get(f"http://{host}:{port}/", timeout=30).text == "hello"
                served.send_signal(signal.SIGTERM)
                _, said = served.communicate(timeout=30)
            finally:
                served.kill()
    assert served.returncode == 0, said
    assert "Traceback" not in said
