r"""Keys and values of RawKV and TxnKV as text: what the forms are, and a text of a request as bytes.

    hex        6b31                        any bytes
    base64     azE=                        any bytes; of a request also the URL-safe alphabet, and without padding
    utf8       k1                          refused for bytes that are not UTF-8, never replaced
    escaped    k1\x00                      any bytes: printable ASCII as it is, others as Go and TiKV-CDC escape them

`reading.kv.texts` writes whole columns. An escaped text of a request may use all of Go's escapes: `\a \b \f \n
\r \t \v \\ \' \"`, `\xHH` and `\OOO`.
"""

from __future__ import annotations

import base64
import binascii
import re
from enum import StrEnum

from tistream.errors import InvalidInput

_SHOWN = 64  # characters of a key that a message repeats
_SHORT = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 0x5C: b"\\\\"}
#: byte -> its escaped form, of those that do not stand for themselves
ESCAPES = {b: _SHORT.get(b, b"\\x%02x" % b) for b in range(256) if b in _SHORT or not 0x20 <= b < 0x7F}
_BYTES = {entry[1:].decode(): bytes([b]) for b, entry in _SHORT.items()} | {"'": b"'", '"': b'"'}
_ESCAPE = re.compile(r"""\\(?:([abfnrtv\\'"])|x([0-9a-fA-F]{2})|([0-3][0-7]{2})|(.?))""", re.DOTALL)
_REPLACED = "\ufffd"  # what a query has instead of bytes that are not UTF-8


class NotInFormat(InvalidInput):
    """A key or a value cannot be written in the requested key format."""

    code = "TS-1023"
    hint = "Ask again from the same cursor with key_format=hex, base64 or escaped, which can write any bytes."


class KeyFormat(StrEnum):
    """How keys and values are written."""

    HEX = "hex"
    BASE64 = "base64"
    UTF8 = "utf8"
    ESCAPED = "escaped"


def parse(text: str, form: KeyFormat, *, parameter: str) -> bytes:
    """The bytes that a request's text means. InvalidInput naming the parameter."""
    if _REPLACED in text:
        raise _wrong(text, form, parameter, "it has bytes that are not UTF-8; hex and escaped can name any byte")
    match form:
        case KeyFormat.HEX:
            try:
                return binascii.unhexlify(text)
            except ValueError as e:
                raise _wrong(text, form, parameter, "it is two hexadecimal digits a byte") from e
        case KeyFormat.BASE64:
            standard = text.rstrip("=").replace("-", "+").replace("_", "/")
            try:
                return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
            except ValueError as e:
                raise _wrong(text, form, parameter, "a + in a query is written %2B") from e
        case KeyFormat.UTF8:
            return text.encode("utf-8", "surrogatepass")
    return _unescaped(text, parameter)


def _unescaped(text: str, parameter: str) -> bytes:
    pieces, at = [], 0
    for match in _ESCAPE.finditer(text):
        short, by_hex, octal, other = match.groups()
        if other is not None:
            cause = f"\\{other} at character {match.start()} is no escape: a backslash is written \\\\"
            raise _wrong(text, KeyFormat.ESCAPED, parameter, cause)
        pieces.append(text[at : match.start()].encode("utf-8", "surrogatepass"))
        pieces.append(_BYTES[short] if short else bytes([int(by_hex, 16) if by_hex else int(octal, 8)]))
        at = match.end()
    return b"".join([*pieces, text[at:].encode("utf-8", "surrogatepass")])


def _wrong(text: str, form: KeyFormat, parameter: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"{parameter} is not written as {form} ({text[:_SHOWN]!r}): {cause}.", parameter=parameter, key_format=form
    )
