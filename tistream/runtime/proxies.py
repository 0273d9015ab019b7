"""How a client reaches a service through the proxy of its user's shell, or without one.

    httpx2.Client(**reach(url))

HTTPS_PROXY, HTTP_PROXY and ALL_PROXY name proxies of HTTP, in either case of letters. A service on this machine is
reached directly, and one that NO_PROXY names: `*`, a host, a domain, an address or a network, each with or without a
port. What is not understood in NO_PROXY is left out. Without a CA file, SSL_CERT_FILE and SSL_CERT_DIR name those of
the system.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2

from tistream.errors import ConfigError
from tistream.runtime.credentials import files_for
from tistream.runtime.tls import ClientFiles

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def reach(url: str, environ: Mapping[str, str] | None = None, *, files: ClientFiles | None = None) -> dict[str, Any]:
    """Arguments of an HTTP client for this address. `files`: of TLS; None = those of the command line, the environment
    or `tistream login`. ConfigError for a proxy or for files that no client can use."""
    options: dict[str, Any] = {"trust_env": False, "proxy": proxy_of(url, os.environ if environ is None else environ)}
    if urlsplit(url).scheme == "https":
        options["verify"] = (files or files_for(url)).context(httpx2.create_ssl_context)
    return options


def proxy_of(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for this address; None = none. ConfigError when it is none of HTTP."""
    parts = urlsplit(url)
    given = {name.lower(): (name, value) for name, value in sorted(environ.items()) if value}  # lower case wins
    name, proxy = given.get(f"{parts.scheme}_proxy") or given.get("all_proxy") or ("", "")
    if not proxy or _is_direct(parts, given.get("no_proxy", ("", ""))[1]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        usable = urlsplit(proxy).scheme in ("http", "https") and bool(urlsplit(proxy).hostname)
        usable = usable and urlsplit(proxy).port != 0
    except ValueError:
        usable = False
    if not usable:
        host = parts.hostname or "the service"
        raise ConfigError(f"{name} names no proxy of HTTP. Set one of http:// or https://, or NO_PROXY={host}.")
    return proxy


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches this name or address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_direct(parts: SplitResult, exceptions: str) -> bool:
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    if is_loopback(host):
        return True
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return any(_names(word.strip().lower(), host, address, port) for word in exceptions.split(",") if word.strip())


def _names(word: str, host: str, address: _Address | None, port: int | None) -> bool:
    """Whether an entry of NO_PROXY names the host."""
    if word == "*":
        return True
    if address is not None and "/" in word:
        try:
            return address in ipaddress.ip_network(word, strict=False)
        except ValueError:
            return False
    if _address(word.strip("[]")) is None:  # else the colons of IPv6 are no port
        word, mark, digits = word.rpartition(":") if ":" in word else (word, "", "")
        if mark and digits != str(port):
            return False
    word = word.strip("[]")
    if address is not None:
        return _address(word) == address
    domain = word.lstrip("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
