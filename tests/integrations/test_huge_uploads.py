"""Uploads of 100 MB: refused ones end soon, admitted ones pass, and neither fills the memory."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tests.integrations.asgi_client import controller
from tests.integrations.every_server import every, stage
from tests.integrations.serving import Http1, Http2, until

CHUNK = b"0123456789abcdef" * 65_536
SIZE = 100 * len(CHUNK)

# What client and server may need beside each other: socket buffers of both sides, the layer's
# buffer of 256 KiB, a chunk or two in the server's parser, and the allocator's own mind.
ROOM = 24 * 1024 * 1024


def memory() -> int:
    """Resident bytes of this process, in which client and server run."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Upload:
    """Sends 100 MB in a thread, until the server has had enough."""

    def __init__(self, client: Http1, path: str) -> None:
        self.sent = 0
        self.most = 0
        self._client = client
        client.send(client.head("POST", path, SIZE))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self.sent < SIZE:
            try:
                self._client.send(CHUNK)
            except OSError:
                return  # closed: the answer came before the upload's end
            self.sent += len(CHUNK)
            self.most = max(self.most, memory())

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@every
def test_a_refused_upload_of_100_mb_ends_soon_and_fills_no_memory(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy():
        before = memory()
        with Http1(here.port) as client:
            upload = Upload(client, "/echo")
            assert client.read()[0] == 503
            upload.end()
        if not kind.startswith("uvicorn"):  # it reads and drops the rest by itself
            assert upload.sent < SIZE
        assert upload.most - before < ROOM
        with Http1(here.port) as another:
            assert another.get("/healthz")[0] == 200


@pytest.mark.parametrize("kind", ["hypercorn-uvloop", "hypercorn-trio", "uvicorn-httptools"])
def test_a_queued_upload_of_100_mb_arrives_byte_for_byte_and_fills_no_memory(kind: str) -> None:
    digest = hashlib.sha256()
    for _ in range(100):
        digest.update(CHUNK)
    with stage(kind, controller()) as here, Http1(here.port) as client:
        with here.busy():
            before = memory()
            upload = Upload(client, "/echo")
            until(lambda: here.waiting == 1)
        _, _, told = client.read()
        upload.end()
        assert told == f"{SIZE} {digest.hexdigest()}".encode()
        assert upload.most - before < ROOM


def test_a_refused_upload_of_100_mb_over_http2_leaves_its_neighbours_alone() -> None:
    with stage("hypercorn-uvloop", controller(max_queue=0)) as here, here.busy():
        before = memory()
        with Http2(here.port) as client:
            stream = client.request("POST", "/echo", CHUNK * 16)
            for _ in range(5):
                healthy = client.request("GET", "/healthz")
                client.finish(healthy)
                assert client.status[healthy] == 200
            client.finish(stream)
            assert client.status[stream] == 503
        # The client itself holds its 16 MB twice.
        assert memory() - before < ROOM + 3 * 16 * len(CHUNK)
