"""The words of a row expression: names, numbers, strings, hexadecimal bytes, symbols, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from reading.filters.core.refusal import check_length, refused

_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][0-9A-Za-z_$\u0080-\U0010ffff]*")
_HEX = re.compile(r"0x([0-9A-Fa-f]+)(?![0-9A-Za-z_$])|[xX]'([0-9A-Fa-f]*)'")
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_SYMBOL = re.compile(r"<=|>=|<>|!=|&&|\|\||[=<>(),+-]")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_DIGITS_MAX = 100
_EXPONENT_MAX = 400


class Kind(StrEnum):
    """The kinds of words."""

    NAME = "name"  #: a column, or a word of the grammar
    QUOTED = "quoted name"
    NUMBER = "number"
    STRING = "string"
    BYTES = "bytes"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word with its place."""

    kind: Kind
    value: str | Decimal | bytes
    at: int


def tokens(parameter: str, text: str) -> list[Token]:
    """The words of an expression, END last. FilterInvalid for what is no word."""
    check_length(parameter, text)
    return list(_tokens(parameter, text))


def _tokens(parameter: str, text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if found := _SPACE.match(text, at):
            at = found.end()
            continue
        if found := _HEX.match(text, at):
            digits = found[1] or found[2] or ""
            if found[2] is not None and len(digits) % 2:
                raise refused(parameter, text, at, "an odd number of hexadecimal digits")
            yield Token(kind=Kind.BYTES, value=bytes.fromhex("0" * (len(digits) % 2) + digits), at=at)
            end = found.end()
        elif found := _NUMBER.match(text, at):
            end = found.end()
            if _NAME.match(text, end):
                raise refused(parameter, text, at, "not a number; quote a column name with backquotes")
            yield Token(kind=Kind.NUMBER, value=number(parameter, text, at, found[0]), at=at)
        elif found := _NAME.match(text, at):
            yield Token(kind=Kind.NAME, value=found[0], at=at)
            end = found.end()
        elif text[at] in "'\"`":
            value, end = _quoted(parameter, text, at)
            yield Token(kind=Kind.QUOTED if text[at] == "`" else Kind.STRING, value=value, at=at)
        elif found := _SYMBOL.match(text, at):
            yield Token(kind=Kind.SYMBOL, value=found[0], at=at)
            end = found.end()
        else:
            raise refused(parameter, text, at, f"unexpected {text[at]!r}")
        at = end
    yield Token(kind=Kind.END, value="", at=len(text))


def number(parameter: str, text: str, at: int, shown: str) -> Decimal:
    """The exact value of a number's text."""
    digits, _, exponent = shown.lower().partition("e")
    if len(digits) > _DIGITS_MAX or (exponent and (len(exponent) > 5 or abs(int(exponent)) > _EXPONENT_MAX)):
        raise refused(parameter, text, at, f"a number of more than {_DIGITS_MAX} digits or beyond 1e{_EXPONENT_MAX}")
    return Decimal(shown)


def _quoted(parameter: str, text: str, start: int) -> tuple[str, int]:
    """(what stands between the quotes, the place after them). In strings a backslash escapes as in MySQL, where \\%
    and \\_ stay as they are for LIKE."""
    quote, at, parts = text[start], start + 1, list[str]()
    while at < len(text):
        c = text[at]
        if c == quote and text[at + 1 : at + 2] != quote:
            return "".join(parts), at + 1
        if c == "\\" and quote != "`" and at + 1 < len(text):
            following = text[at + 1]
            parts.append(c + following if following in "%_" else _ESCAPES.get(following, following))
            at += 2
            continue
        parts.append(c)
        at += 2 if c == quote else 1
    raise refused(parameter, text, start, "a quote is not closed")
