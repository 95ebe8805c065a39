"""The live page in a real browser: it draws a process under load, and says when it is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from loadgate.integrations.console.live import Live
from loadgate.integrations.console.status import Status
from tests.integrations.served import Served
from tests.observability.browser import Browser
from tests.observability.test_console import ODD, Story, odd
from tests.observability.test_live import APP, POLICY
from tests.programs import PATIENCE

# Whether something else than the background is on each canvas.
DRAWN = """[...document.querySelectorAll("canvas")].map(canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(Array.from(data).filter((_, i) => i % 4 === 3)).size > 1; })"""


@contextmanager
def load(url: str) -> Generator[None]:
    """More than the policy allows, until the block is left."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=PATIENCE) as client:
            while not over.wait(0.02):
                client.get(url)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(400)  # the first time the browser is downloaded
def test_the_page_draws_what_happens_and_says_when_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.replace("1/second", "5/second"))
    with Browser(tmp_path) as browser:
        with Served(tmp_path, "--policy", "policy.toml", "--door", "off", app=APP) as served:
            with load(f"{served.url}/"):
                browser.open(f"{served.ops}/live")
                browser.until("readings.length >= 3 && readings.at(-1).requests.rate_limited > 0")
                figures: list[str] = browser.value(
                    '[...document.querySelectorAll(".figure")].map(card => card.innerText)'
                )
                drawn: list[bool] = browser.value(DRAWN)
                refusals: str = browser.value('document.getElementById("refusals").innerText')
            assert browser.value('document.getElementById("state").textContent') == "live"
            assert browser.value('document.getElementById("name").textContent') == "default"
        browser.until('document.getElementById("state").className === "bad"')
    assert len(figures) == 8
    assert all(any(letter.isdigit() for letter in text) for text in figures), figures
    assert drawn == [True] * 4
    assert "429" in refusals
    assert "has nothing left for this client" in refusals
    assert [one for one in browser.complaints if "ERR_CONNECTION_REFUSED" not in one] == []


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, live: Live, *rest: Any) -> None:
        self._live = live
        super().__init__(*rest)

    def do_GET(self) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        status, body, kind = self._live.answer(self.path, headers)
        self.send_response(status)
        self.send_header("content-type", kind)
        for name, value in self._live.page_headers:
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def page_of(look: Callable[[], Status]) -> Generator[str]:
    """The live page of whatever `look` says; gives its address."""
    live = Live(look, local=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, live))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/live"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.timeout(400)  # the first time the browser is downloaded
def test_the_page_shows_odd_names_as_text_and_everything_that_warns(tmp_path: Path) -> None:
    story = Story()
    anyio.run(story.play)
    looks = 0

    def look() -> Status:
        nonlocal looks
        looks += 1
        return odd(story.after, at=float(looks))

    with page_of(look) as address, Browser(tmp_path) as browser:
        browser.open(address)
        browser.until("readings.length >= 2")

        def said(name: str) -> str:
            return str(browser.value(f'document.getElementById("{name}").textContent'))

        assert said("name") == ODD
        assert "up 3 d 0 h" in said("about")
        assert "shared store is away, 3 processes" in said("about")
        for warning in ("kill switch on", "shared store is away", "braked to 50 %"):
            assert warning in said("warnings")
        assert ODD in said("classes")
        assert "default" in said("classes")
        refusals = said("refusals")
        assert ODD in refusals
        assert "Nov 1" in refusals, "a refusal of another day has its date"
        assert browser.value('document.querySelectorAll("img, b b").length') == 0
        assert browser.value("typeof hacked") == "undefined"
        complaints = list(browser.complaints)
    assert complaints == []


@pytest.mark.timeout(400)
def test_a_page_whose_process_is_well_warns_of_nothing(tmp_path: Path) -> None:
    story = Story()
    anyio.run(story.play)
    looks = 0

    def look() -> Status:
        nonlocal looks
        looks += 1
        return msgspec.structs.replace(story.after, at=story.after.at + looks)

    with page_of(look) as address, Browser(tmp_path) as browser:
        browser.open(address)
        browser.until("readings.length >= 2")
        assert browser.value('document.getElementById("warnings").textContent') == ""
        assert "store" not in browser.value('document.getElementById("about").textContent')
