"""A response is read the same however it is cut into pieces, and nonsense is recognised."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.integrations.loadgen import ClientClass
from loadgate.integrations.loadgen.http1 import LONGEST_HEAD, NotHttp, Response, request

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 \r\nTransfer-Encoding: gzip, Chunked\r\n\r\n"
    b"5;note=1\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nx-sum: 1\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + COUNTED
ALL = {COUNTED: 200, CHUNKED: 503, EMPTY: 204, INTERIM: 200}


def read(data: bytes, cuts: list[int], method: str = "GET") -> tuple[Response, list[bool]]:
    response = Response(method)
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges) if a < b]
    return response, [response.feed(piece) for piece in pieces]


@given(st.sampled_from(sorted(ALL)), st.lists(st.integers(1, 160)))
def test_a_response_is_complete_exactly_at_its_last_byte(data: bytes, cuts: list[int]) -> None:
    response, complete = read(data, cuts)
    assert complete == [False] * (len(complete) - 1) + [True]
    assert response.status == ALL[data]
    assert response.reusable


def test_without_a_length_the_end_is_the_end_of_the_connection() -> None:
    response, complete = read(b"HTTP/1.1 200 OK\r\n\r\nsome text", [])
    assert complete == [False]
    assert response.end()
    assert not response.reusable


@pytest.mark.parametrize("data", [COUNTED[:-1], CHUNKED[:-1], CHUNKED[:70], COUNTED[:20], b""])
def test_a_response_that_is_cut_off_is_not_complete(data: bytes) -> None:
    response, _ = read(data, [])
    assert not response.end()


def test_a_reply_to_head_has_no_body() -> None:
    response, complete = read(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", [], "HEAD")
    assert complete == [True]
    assert response.reusable


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", True),
        (COUNTED + b"HTTP/1.1 200 OK\r\n", False),
    ],
)
def test_a_connection_is_used_again_only_if_the_server_allows_it(
    data: bytes, reusable: bool
) -> None:
    response, complete = read(data, [])
    assert complete == [True]
    assert response.reusable is reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"x" * (LONGEST_HEAD + 1),
    ],
)
def test_what_is_not_http_is_recognised(data: bytes) -> None:
    with pytest.raises(NotHttp):
        read(data, [])


def test_a_request_names_its_client_and_counts_its_body() -> None:
    one = ClientClass(name="user", method="POST", path="/a?b", body="é", headers=(("X-A", "1"),))
    assert request(one, "host:1", "user-3") == (
        b"POST /a?b HTTP/1.1\r\nhost: host:1\r\nx-client: user-3\r\nX-A: 1\r\n"
        b"content-length: 2\r\n\r\n\xc3\xa9"
    )


def test_a_chunked_request_has_no_content_length_and_a_given_host_is_kept() -> None:
    one = ClientClass(name="user", method="PUT", body="hi", chunked=True, headers=(("Host", "h"),))
    assert request(one, "host:1", "") == (
        b"PUT / HTTP/1.1\r\nHost: h\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    )
