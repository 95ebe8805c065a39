"""How is a request refused that may still be uploading? So that every server survives it.

An answer that ends before the upload does is a trap. Hypercorn 0.18 loses the stream's state on
HTTP/2: the next DATA frame kills the connection on asyncio and the whole worker on trio; on
HTTP/1.1 it dead-locks once ten unread messages have piled up. So the client gets the complete
document at once, while the message that *ends* the response waits until the upload has ended
too. RFC 9112, 9.3 and 9.6, ask for the same: read, or close in stages.
"""

from __future__ import annotations

from typing import Final

import anyio

from loadgate.integrations.http import Answer
from loadgate.integrations.receive import (
    Buffers,
    Message,
    Receive,
    ReceivePump,
    Scope,
    Send,
    run_beside,
)

# A pump that only throws away holds nothing.
_NOTHING: Final = Buffers(0, 0)


def is_multiplexed(scope: Scope) -> bool:
    """Whether other requests share the connection (HTTP/2, HTTP/3)."""
    version: str = scope.get("http_version", "1.1")
    return version[:1] in ("2", "3")


def may_have_body(scope: Scope) -> bool:
    """Whether a body may follow; HTTP/2 does not tell (the end is a flag that ASGI hides)."""
    if is_multiplexed(scope):
        return True
    for name, value in scope.get("headers", ()):
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            return True
    return False


def expects_continue(scope: Scope) -> bool:
    """Whether the client asks before it uploads. Reading would invite the body, so do not."""
    if is_multiplexed(scope):
        return False
    for name, value in scope.get("headers", ()):
        if name == b"expect" and value.strip().lower() == b"100-continue":
            return True
    return False


async def send_refusal(
    answer: Answer,
    scope: Scope,
    receive: Receive,
    send: Send,
    pump: ReceivePump | None,
    *,
    max_bytes: int,
    max_time: float,
    waited: bool = False,
) -> None:
    """Send a whole answer to a request that the application never sees.

    Args:
        answer: What to say.
        scope: The request.
        receive: The server's, used only without a pump.
        send: The server's.
        pump: The pump, if one runs already.
        max_bytes: Bytes of an upload that are read at most (HTTP/1.x; the server then closes).
        max_time: Seconds that an upload may go on (HTTP/1.x).
        waited: Whether the request stood in the queue unread, so that messages may have piled up.
    """
    start = {"type": "http.response.start", "status": answer.status, "headers": [*answer.headers]}
    body = {"type": "http.response.body", "body": answer.body, "more_body": False}
    if pump is None:
        expecting = False
        if not may_have_body(scope) or ((expecting := expects_continue(scope)) and not waited):
            await send(start)
            await send(body)
            return
        if expecting:
            # The client uploads nothing after this answer, unless the server invited it behind
            # our back (Hypercorn does). So wait for nothing, but read while the end is sent.
            max_bytes = 0
    await send(start)
    await send({**body, "more_body": True})
    end: Message = {"type": "http.response.body", "body": b"", "more_body": False}
    endless = is_multiplexed(scope)
    if pump is None:
        if max_bytes > 0 and await _read_to_end(
            receive, float("inf") if endless else max_bytes, None if endless else max_time
        ):
            await send(end)
            return
        fresh = ReceivePump(receive, _NOTHING)
        fresh.discard()
        await run_beside(fresh, lambda: _send(send, end))
        return
    pump.discard()
    if endless:
        await pump.wait_until_over(float("inf"))
    else:
        with anyio.move_on_after(max_time):
            await pump.wait_until_over(max_bytes)
    await send(end)


async def _read_to_end(receive: Receive, max_bytes: float, max_time: float | None) -> bool:
    """Read and drop; True when the upload has ended or the client has left."""
    read = 0
    with anyio.move_on_after(max_time):
        while read < max_bytes:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return True
            read += len(message.get("body", b""))
    return False


async def _send(send: Send, message: Message) -> None:
    await send(message)


async def deny_websocket(answer: Answer, scope: Scope, send: Send, code: int = 1013) -> None:
    """Refuse a handshake: with the answer where the server can, else with a plain 403.

    Args:
        answer: What to say.
        scope: The handshake.
        send: The server's.
        code: The close code, for servers and frameworks that pass it on.
    """
    if "websocket.http.response" in (scope.get("extensions") or ()):
        await send(
            {
                "type": "websocket.http.response.start",
                "status": answer.status,
                "headers": [*answer.headers],
            }
        )
        await send(
            {"type": "websocket.http.response.body", "body": answer.body, "more_body": False}
        )
        return
    # Before the handshake every server turns this into a 403 and drops code and reason.
    await send({"type": "websocket.close", "code": code, "reason": "busy"})
