"""Keys of requests as bytes: the vectors of TiKV-CDC's own tests, and Python's codecs."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.codec.key_format import ESCAPES, KeyFormat, parse
from tistream.errors import InvalidInput


@pytest.mark.parametrize(
    ("form", "text", "key"),
    [
        (KeyFormat.ESCAPED, r"prefix\x00\x11\\", b"prefix\x00\x11\\"),
        (KeyFormat.ESCAPED, r"\a\b\f\n\r\t\v\\\'\"", b"\a\b\f\n\r\t\v\\'\""),
        (KeyFormat.ESCAPED, r"\101\377\x4a", b"A\xffJ"),
        (KeyFormat.ESCAPED, "\u00e9", b"\xc3\xa9"),
        (KeyFormat.HEX, "6B31ff", b"k1\xff"),
        (KeyFormat.BASE64, "_-8=", b"\xff\xef"),
        (KeyFormat.BASE64, "azE", b"k1"),
        (KeyFormat.UTF8, "\u00e9\\x00", b"\xc3\xa9\\x00"),
    ],
)
def test_a_text_means_its_bytes(form: KeyFormat, text: str, key: bytes) -> None:
    assert parse(text, form, parameter="prefix") == key


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((KeyFormat.ESCAPED, text) for text in (r"\zz", "\\", r"\x4", r"\xg0", r"\9", r"\400", "k\\\n")),
        *((KeyFormat.HEX, text) for text in ("6", "6b 31", "0x6b", "zz")),
        *((KeyFormat.BASE64, text) for text in ("azE ", "a", "a*==")),
        *((form, "\ufffd") for form in KeyFormat),
    ],
)
def test_another_text_is_refused_with_its_parameter(form: KeyFormat, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"^start_key is not written as {form} "):
        parse(text, form, parameter="start_key")


@given(st.binary(max_size=40))
def test_any_bytes_have_an_escaped_and_a_base64_form(key: bytes) -> None:
    escaped = b"".join(ESCAPES.get(byte, bytes([byte])) for byte in key).decode("ascii")
    assert escaped.isprintable()
    assert parse(escaped, KeyFormat.ESCAPED, parameter="prefix") == key
    assert parse(base64.urlsafe_b64encode(key).decode(), KeyFormat.BASE64, parameter="prefix") == key
