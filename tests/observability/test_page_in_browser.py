"""The live page in a real browser: it draws a process under load, and says when it is gone."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integrations.served import PATIENCE, Served
from tests.observability.browser import Browser
from tests.observability.test_live import APP, POLICY

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
