"""Reads a request body before the application does, and replays it."""

from __future__ import annotations

from starlette.types import Message, Receive

from tistream.errors import InvalidInput


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """The whole body. InvalidInput when it has more than `bytes_max`, or breaks off."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if message["type"] != "http.request" or size > bytes_max:
            raise InvalidInput(f"The request body is truncated or has more than {bytes_max} bytes.")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def receive_with(body: bytes, receive: Receive) -> Receive:
    """A receive that returns the body once more, then continues with `receive`."""
    given = False

    async def receive_body() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body
