"""Reads tokens one by one, and writes what every statement has: names, strings, lists, expressions (pure).

Each method reads a part of the statement and returns it restored. Expressions keep the user's parentheses, so only
their spelling changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from schemas.queries import quoted
from schemas.restore.tokens import END, Token, TokenKind, Unsupported, tokens

__all__ = ["NOW", "SPECIAL", "Parser", "Unsupported", "text_of"]

_CHARSETS = {"": "UTF8MB4", "utf8mb4": "UTF8MB4"}
_TIGHT = frozenset("+-*/%=<>^&|") | {"<=", ">=", "<=>", "<<", ">>", "!="}
_SPACED = frozenset({"AND", "OR", "XOR", "DIV", "MOD"})
_SAME = {"<>": "!=", "&&": "AND", "MOD": "%"}
NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_AGGREGATES = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG"})
#: functions with a grammar of their own, and words that begin other constructs
SPECIAL = frozenset([
    "CAST", "CONVERT", "EXTRACT", "TRIM", "POSITION", "SUBSTRING", "SUBSTR", "INTERVAL", "CASE", "EXISTS",
    "NOT", "BINARY", "MATCH", "GROUP_CONCAT", "GET_FORMAT", "DATE_ADD", "DATE_SUB", "ADDDATE", "SUBDATE",
    "TIMESTAMPADD", "TIMESTAMPDIFF", "CHAR", "WEIGHT_STRING", "VALUES", "DEFAULT", "ROW", "SELECT", "WITH",
    "JSON_ARRAYAGG", "JSON_OBJECTAGG", "USER", "CURRENT_USER", "DATE", "TIME", "TIMESTAMP", "ANY", "SOME",
    "ALL", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "CURDATE", "CURTIME", "CURRENT_DATE", "CURRENT_TIME",
    "SYSDATE", "DISTINCT", "FROM", "WHERE", "AS", "ON", "MOD", "LEFT", "RIGHT", "REPLACE", "INSERT", "NEXTVAL",
    "LASTVAL", "SETVAL", "BIT_AND", "BIT_OR", "BIT_XOR", "STD", "STDDEV", "STDDEV_POP", "STDDEV_SAMP",
    "VAR_POP", "VAR_SAMP", "VARIANCE",
])  # fmt: skip
_UNITS = frozenset(["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"])


def text_of(value: str) -> str:
    """A string as TiDB writes it: quotes are doubled, a backslash is itself."""
    return "'" + value.replace("'", "''") + "'"


class Parser:
    """The tokens of one statement."""

    def __init__(self, query: str, *, sql_mode: int, charset: str) -> None:
        if charset not in _CHARSETS:
            raise Unsupported(charset)
        self._tokens = tokens(query, sql_mode)
        self._at = 0
        self.introducer = "_" + _CHARSETS[charset]
        self.schemas: set[str] = set()  #: databases that tables of a SELECT name

    @property
    def next(self) -> Token:
        return self.ahead(0)

    def ahead(self, count: int) -> Token:
        """The token after `count` others."""
        at = self._at + count
        return self._tokens[at] if at < len(self._tokens) else END

    def take(self) -> Token:
        token = self.next
        if token is END:
            raise Unsupported("the end")
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Whether these keywords or signs come next; then they are read."""
        if any(self.ahead(n).upper != word for n, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise Unsupported(f"{self.next.value} where {' '.join(words)} is expected")

    def one_of(self, words: Collection[str]) -> str:
        """One of these keywords, in upper case; empty when none comes next."""
        word = self.next.upper
        if self.next.kind is not TokenKind.WORD or word not in words:
            return ""
        self._at += 1
        return word

    def finish(self) -> None:
        """Nothing but a semicolon is left."""
        self.accept(";")
        if self.next is not END:
            raise Unsupported(self.next.value)

    def raw_name(self) -> str:
        token = self.take()
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
            raise Unsupported(token.value)
        return token.value

    def name(self) -> str:
        """One name in backquotes."""
        return quoted(self.raw_name())

    def table(self) -> str:
        """A table's name, with its database if the user gave it."""
        first = self.raw_name()
        if not self.accept("."):
            return quoted(first)
        self.schemas.add(first)
        return quoted(first, self.raw_name())

    def number(self) -> str:
        token = self.take()
        if token.kind is not TokenKind.NUMBER or not token.value.isdecimal():
            raise Unsupported(token.value)
        return str(int(token.value))

    def string(self) -> str:
        """A string without a charset."""
        token = self.take()
        if token.kind is not TokenKind.STRING:
            raise Unsupported(token.value)
        return text_of(token.value)

    def charset_name(self) -> str:
        """Name of a charset or collation."""
        token = self.take()
        if token.kind is TokenKind.SIGN or not re.fullmatch(r"\w+", token.value):
            raise Unsupported(token.value)
        return token.value

    def several(self, part: Callable[[], str], separator: str) -> str:
        """Parts separated by commas."""
        parts = [part()]
        while self.accept(","):
            parts.append(part())
        return separator.join(parts)

    def bracketed(self, part: Callable[[], str], separator: str) -> str:
        """A list in parentheses."""
        self.expect("(")
        parts = self.several(part, separator)
        self.expect(")")
        return f"({parts})"

    # ---- expressions

    def expression(self) -> str:
        text = self._operand()
        while True:
            sign = self.next.upper
            if sign in _TIGHT or sign == "<>":
                self.take()
                text += _SAME.get(sign, sign) + self._operand()
            elif self.next.kind is not TokenKind.QUOTED and (sign in _SPACED or sign == "&&"):
                self.take()
                joined = _SAME.get(sign, sign)
                text += (joined if joined == "%" else f" {joined} ") + self._operand()
            elif self.accept("IS"):
                text += " IS NOT NULL" if self.accept("NOT") else " IS NULL"
                self.expect("NULL")
            elif sign in ("IN", "BETWEEN", "LIKE", "NOT") and self.next.kind is TokenKind.WORD:
                text += self._predicate()
            else:
                return text

    def _predicate(self) -> str:
        not_ = " NOT" if self.accept("NOT") else ""
        if self.accept("IN"):
            if self.ahead(1).upper in ("SELECT", "WITH", "TABLE", "VALUES", "("):
                raise Unsupported("IN of a query")
            return f"{not_} IN {self.bracketed(self.expression, ',')}"
        if self.accept("LIKE"):
            text = f"{not_} LIKE {self._operand()}"
            if self.next.upper == "ESCAPE":
                raise Unsupported("ESCAPE")
            return text
        self.expect("BETWEEN")
        low = self._arithmetic()
        self.expect("AND")
        return f"{not_} BETWEEN {low} AND {self._arithmetic()}"

    def _arithmetic(self) -> str:
        text = self._operand()
        while self.next.kind is TokenKind.SIGN and self.next.value in "+-*/%":
            text += self.take().value + self._operand()
        return text

    def _operand(self) -> str:
        token = self.next
        if token.kind is TokenKind.SIGN:
            if self.accept("("):
                if self.next.upper in ("SELECT", "WITH"):
                    raise Unsupported("a query inside an expression")
                text = self.expression()
                self.expect(")")
                return f"({text})"
            if token.value in ("-", "+") and self.ahead(1).kind is TokenKind.NUMBER:
                return self.take().value + self._literal(self.take())
            raise Unsupported(token.value)
        if token.kind in (TokenKind.STRING, TokenKind.NUMBER, TokenKind.BITS):
            return self._literal(self.take())
        word = token.upper
        if token.kind is TokenKind.WORD and word in ("NULL", "TRUE", "FALSE"):
            self.take()
            return word
        if token.kind is TokenKind.WORD and word in NOW and (self.ahead(1).upper == "(" or word != "NOW"):
            return self.now()
        if token.kind is TokenKind.WORD and word in SPECIAL:
            raise Unsupported(token.value)
        if token.kind is TokenKind.WORD and self.ahead(1).kind is TokenKind.STRING:
            return self._introduced()
        if token.kind is TokenKind.WORD and self.ahead(1).upper == "(":
            return self.call()
        return self.column()

    def literal(self) -> str:
        """A constant, with its sign."""
        word = self.next.upper
        if self.next.kind is TokenKind.WORD and word not in ("NULL", "TRUE", "FALSE") and not word.startswith("_"):
            raise Unsupported(word)
        return self._operand()

    def column(self) -> str:
        """A column, possibly with its table and database."""
        names = [self.raw_name()]
        while len(names) < 3 and self.accept("."):
            names.append(self.raw_name())
        return quoted(*names)

    def now(self) -> str:
        """CURRENT_TIMESTAMP in any of its spellings."""
        self.take()
        digits = ""
        if self.accept("("):
            digits = self.number() if self.next.kind is TokenKind.NUMBER else ""
            self.expect(")")
        return f"CURRENT_TIMESTAMP({digits})"

    def call(self) -> str:
        """A function with its arguments."""
        name = self.take().upper
        self.expect("(")
        if name in _AGGREGATES:
            distinct = "DISTINCT " if self.accept("DISTINCT") else ""
            inside = distinct + ("1" if name == "COUNT" and self.accept("*") else self.several(self.expression, ", "))
        else:
            inside = "" if self.next.upper == ")" else self.several(self.expression, ", ")
        self.expect(")")
        if self.next.upper == "OVER":
            raise Unsupported("a window function")
        return f"{name}({inside})"

    def _introduced(self) -> str:
        """A string with its charset before it."""
        charset = self.take().upper
        if not charset.startswith("_"):
            raise Unsupported(charset)
        return charset + self._literal(self.take()).removeprefix(self.introducer)

    def _literal(self, token: Token) -> str:
        if token.kind is TokenKind.STRING:
            if self.next.kind is TokenKind.STRING or self.next.upper == "COLLATE":
                raise Unsupported("a string with more behind it")
            return self.introducer + text_of(token.value)
        if token.kind is TokenKind.NUMBER:
            if not re.fullmatch(r"\d+(\.\d+)?", token.value):
                raise Unsupported(token.value)
            whole, _, fraction = token.value.partition(".")
            return str(int(whole)) + (f".{fraction}" if fraction else "")
        digits = token.value[2:].rstrip("'")
        if token.value[:2].lower() in ("b'", "0b"):
            return f"b'{digits.lstrip('0') or '0'}'"
        return f"x'{digits.lower()}'" if len(digits) % 2 == 0 else f"x'0{digits.lower()}'"

    def interval(self) -> str:
        """`column + INTERVAL number unit`, of a TTL."""
        column = self.name()
        self.expect("+", "INTERVAL")
        value = self.string() if self.next.kind is TokenKind.STRING else self.number()
        unit = self.one_of(_UNITS)
        if not unit or value.startswith("'"):
            raise Unsupported("an interval")
        return f"{column} + INTERVAL {value} {unit}"
