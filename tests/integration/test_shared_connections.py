"""Channels with the same number share one connection to a server, also with TLS; those without have their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.kit.certificates import certificate, listening
from tistream.tikv.channels import Channels, Tls


@contextmanager
def a_server(credentials: grpc.ServerCredentials | None) -> Iterator[str]:
    """It answers with the address of the client's end of the connection."""

    def answer(request: bytes, context: Any) -> bytes:
        return str(context.peer()).encode()

    handler = grpc.method_handlers_generic_handler("a", {"Who": grpc.unary_unary_rpc_method_handler(answer)})
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    yield listening(server, credentials)
    server.stop(None).wait()


@pytest.mark.parametrize("secure", [False, True])
def test_channels_with_the_same_number_share_a_connection(secure: bool, tmp_path: Path) -> None:
    ca = credentials = None
    if secure:
        made_here = certificate(tmp_path, "server")
        text = made_here.read_bytes()
        credentials = grpc.ssl_server_credentials([(made_here.with_suffix(".key").read_bytes(), text)])
        ca = text

    def tls() -> Tls | None:
        return None if ca is None else Tls(ca=ca)

    with a_server(credentials) as address:
        channel_sets = [Channels(tls(), number) for number in (1, 1, 2, None, None)]

        def who(channels: Channels) -> bytes:
            peer: bytes = channels.at(address).unary_unary("/a/Who")(b"", timeout=10)
            return peer

        first, again, other, own, another = (who(channels) for channels in channel_sets)
        assert first == again
        assert len({first, other, own, another}) == 4
        channel_sets[0].close()
        assert who(channel_sets[1]) == first, "it is closed with the last of them"
        channel_sets[1].close()
        with closing(Channels(tls(), 1)) as later:
            assert who(later) != first
        for channels in channel_sets[2:]:
            channels.close()
