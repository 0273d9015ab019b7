"""Tokens of a SQL statement (pure).

Comments are left out; the contents of those that TiDB executes (`/*T! ... */`, `/*!40101 ... */`) are part of the
statement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20  #: bits of `sql_mode`

_TOKEN = re.compile(
    r"""
    (?P<opens>/\*T!(?:\[[\w, ]*\])?|/\*!(?:\d{5,6})?)
  | (?P<skip>\s+|--(?=\s|$)[^\n]*|\#[^\n]*|/\*(?![!+M]).*?\*/)
  | (?P<closes>\*/)
  | (?P<bits>[xX]'[0-9a-fA-F]*'|[bB]'[01]*'|0x[0-9a-fA-F]+\b|0b[01]+\b)
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w$]))
  | (?P<word>[\w$]+)
  | (?P<sign><=>|<=|>=|<>|!=|:=|<<|>>|\|\||&&|->>|->|[-+*/%=<>!~^&|(),.;@])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class Unsupported(Exception):
    """The statement has something that this package does not know."""


class TokenKind(Enum):
    WORD = "word"  #: a keyword or a name
    QUOTED = "quoted"  #: a name
    STRING = "string"
    NUMBER = "number"
    BITS = "bits"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    value: str  #: of a word, number or sign as it is written; of a name or string without quotes and escapes

    @property
    def upper(self) -> str:
        """The word for comparison with keywords; empty for anything but words and signs."""
        return self.value.upper() if self.kind in (TokenKind.WORD, TokenKind.SIGN) else ""


END = Token(TokenKind.END, "")


def tokens(text: str, sql_mode: int) -> list[Token]:
    """All tokens of the text. Unsupported where it is not SQL that TiDB accepts."""
    read: list[Token] = []
    at, executed = 0, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unsupported(text[at : at + 20])
        kind, raw, at = match.lastgroup, match.group(), match.end()
        if kind == "opens" or (kind == "closes" and executed):
            executed = kind == "opens"
        elif kind == "closes":
            raise Unsupported("*/")
        elif kind == "string":
            read.append(_string(raw, sql_mode))
        elif kind == "quoted":
            read.append(Token(TokenKind.QUOTED, raw[1:-1].replace("``", "`")))
        elif kind != "skip":
            read.append(Token(TokenKind(kind), raw))
    return read


def _string(raw: str, sql_mode: int) -> Token:
    quote, body = raw[0], raw[1:-1]
    if quote == '"' and sql_mode & ANSI_QUOTES:
        return Token(TokenKind.QUOTED, body.replace('""', '"'))
    if "\\" in body and sql_mode & NO_BACKSLASH_ESCAPES:
        raise Unsupported("a backslash that is no escape")
    plain = re.sub(
        r"\\(.)|" + quote * 2, lambda m: quote if m[1] is None else _ESCAPES.get(m[1], m[1]), body, flags=re.S
    )
    return Token(TokenKind.STRING, plain)
