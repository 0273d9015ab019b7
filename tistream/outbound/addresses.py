"""The addresses of a host, and which of them may be connected to at all."""

from __future__ import annotations

import socket

from tistream.outbound.rules import Address, address_of


def resolve(host: str, port: int) -> tuple[Address, ...]:
    """All addresses of a host, in order. OSError when it has none."""
    literal = address_of(host)
    if literal is not None:
        return (literal,)
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = {address for answer in answers if (address := address_of(str(answer[4][0]))) is not None}
    if not addresses:
        raise OSError("the name has no address")
    return tuple(sorted(addresses, key=lambda each: (each.version, int(each))))


def is_public(address: Address) -> bool:
    """Whether it is routed on the internet."""
    return address.is_global and not is_never(address)


def is_never(address: Address) -> bool:
    """Whether no target has this address: clouds answer with a machine's credentials at link-local ones."""
    return address.is_link_local or address.is_multicast or address.is_unspecified or int(address) == 0xFFFFFFFF
