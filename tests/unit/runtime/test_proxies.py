"""The proxy of a user's shell: a table of environments."""

from __future__ import annotations

import pytest

from tistream.errors import ConfigError
from tistream.runtime.proxies import proxy_of

DEAD = "http://127.0.0.1:9"
URL = "http://db.corp:8711"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        (URL, {}, None),
        (URL, {"HTTP_PROXY": DEAD}, DEAD),
        (URL, {"http_proxy": DEAD, "HTTP_PROXY": "http://other"}, DEAD),
        (URL, {"HTTPS_PROXY": DEAD}, None),
        ("https://db.corp", {"HTTPS_PROXY": DEAD, "HTTP_PROXY": "http://other"}, DEAD),
        (URL, {"ALL_PROXY": DEAD}, DEAD),
        (URL, {"HTTP_PROXY": "127.0.0.1:9"}, DEAD),
        (URL, {"HTTP_PROXY": ""}, None),
        *[
            (URL, {"HTTP_PROXY": DEAD, "NO_PROXY": text}, None)
            for text in ("*", "db.corp", "corp", ".corp", "*.corp", "x, db.corp:8711", "DB.CORP")
        ],
        *[
            (URL, {"HTTP_PROXY": DEAD, "NO_PROXY": text}, DEAD)
            for text in ("db.corp:80", "b.corp", "fd00::/8", "10.0.0.0/8", "[::1", ",,", "localhost")
        ],
        *[
            ("http://10.2.0.7:8711", {"HTTP_PROXY": DEAD, "NO_PROXY": text}, None)
            for text in ("10.0.0.0/8", "10.2.0.7", "10.2.0.7:8711", "localhost,10.2.0.7/32,fd00::/8")
        ],
        *[
            ("http://[fd00::7]:8711", {"HTTP_PROXY": DEAD, "NO_PROXY": text}, None)
            for text in ("fd00::/8", "fd00::7", "[fd00::7]", "[fd00::7]:8711")
        ],
        *[
            (f"http://{host}:8711", {"ALL_PROXY": "socks5://x", "HTTP_PROXY": DEAD}, None)
            for host in ("127.0.0.1", "localhost", "[::1]", "127.1.2.3")
        ],
    ],
)
def test_the_proxy_of_an_address(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_of(url, environ) == proxy


@pytest.mark.parametrize("proxy", ["socks5://p:1", "socks5h://u:secret@p:1", "http://", "http://p:port", "ftp://p"])
def test_a_proxy_that_is_none_of_http_is_named_by_its_variable(proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"^ALL_PROXY .* NO_PROXY=db\.corp") as refused:
        proxy_of(URL, {"ALL_PROXY": proxy})
    assert "secret" not in str(refused.value)
    assert proxy_of(URL, {"ALL_PROXY": proxy, "NO_PROXY": "db.corp"}) is None
