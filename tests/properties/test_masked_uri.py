"""No form of a sink URI that its reader takes a secret from is shown with it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.catalog.tenancy.changefeeds import masked_uri

SECRETS = ("secret-access-key", "session-token", "SECRET_ACCESS_KEY", "password", "sasl-password")
SECRET = "TOPSECRET"
BEGINS = ("?", "?protocol=csv&", "?a=b&c=&", "?&", "#?", "?x#")


@st.composite
def spelled(draw: st.DrawFn, name: str) -> str:
    """The name with some of its characters encoded, some of them twice, in either case."""
    letters = []
    for letter in name:
        code = draw(
            st.sampled_from([letter, letter, f"%{ord(letter):02x}", f"%{ord(letter):02X}", f"%25{ord(letter):x}"])
        )
        letters.append(code)
    return "".join(letters)


@given(st.sampled_from(SECRETS).flatmap(spelled), st.sampled_from(BEGINS))
def test_a_secret_is_never_shown_however_its_name_is_written(name: str, before: str) -> None:
    for value in (SECRET, f"{SECRET}%2B", f"a#{SECRET}", f"a?{SECRET}", f"={SECRET}"):
        shown = masked_uri(f"s3://b/p{before}{name}={value}&region=x")
        assert SECRET not in shown
        assert shown.endswith("&region=x")
        pairs = [pair for pair in parse_qsl(urlsplit(f"s3://b/p{before}").query, keep_blank_values=True) if pair[0]]
        assert set(pairs) <= set(parse_qsl(urlsplit(shown).query, keep_blank_values=True))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://b/p", "s3://b/p"),
        ("file:///lake?protocol=csv&terminator=%0A", "file:///lake?protocol=csv&terminator=%0A"),
        ("s3://b/p?access-key=AKIA&secret-access-key=x", "s3://b/p?access-key=AKIA&secret-access-key=***"),
        ("tikv://user:word@pd:2379?concurrency=4", "tikv://***@pd:2379?concurrency=4"),
        ("s3://b/p?endpoint=https%3A%2F%2Fme%3Aword%40host&region=x", "s3://b/p?endpoint=***&region=x"),
    ],
)
def test_what_is_no_secret_is_shown_as_written(uri: str, shown: str) -> None:
    assert masked_uri(uri) == shown
