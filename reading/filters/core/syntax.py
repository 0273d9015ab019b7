"""Row expressions: the grammar, and its parser by recursive descent.

    condition   := conjunction {OR conjunction}
    conjunction := negation {AND negation}
    negation    := {NOT} test
    test        := "(" condition ")" | operand (= | <> | != | < | <= | > | >=) operand
                 | column [NOT] IN "(" literal {"," literal} ")" | column [NOT] BETWEEN literal AND literal
                 | column [NOT] LIKE string [ESCAPE string] | column IS [NOT] NULL
    operand     := column | literal        at least one of two is a column
    literal     := number | string | X'..' | 0x.. | TRUE | FALSE | NULL | [DATE | TIME | TIMESTAMP] string

Words are read in any case. `&&` and `||` are AND and OR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

from reading.filters.core.refusal import check_length, refused

_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][0-9A-Za-z_$\u0080-\U0010ffff]*")
_HEX = re.compile(r"0x([0-9A-Fa-f]+)(?![0-9A-Za-z_$])|[xX]'([0-9A-Fa-f]*)'")
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_SYMBOL = re.compile(r"<=|>=|<>|!=|&&|\|\||[=<>(),+-]")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_DIGITS_MAX = 100
_EXPONENT_MAX = 400


class WordKind(StrEnum):
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

    kind: WordKind
    value: str | Decimal | bytes
    at: int


def tokens(parameter: str, text: str) -> list[Token]:
    """The words of an expression, END last. FilterInvalid for what is no word."""
    check_length(parameter, text)
    return list(_tokens(parameter, text))


def _tokens(parameter: str, text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if match := _SPACE.match(text, at):
            at = match.end()
            continue
        if match := _HEX.match(text, at):
            digits = match[1] or match[2] or ""
            if match[2] is not None and len(digits) % 2:
                raise refused(parameter, text, at, "an odd number of hexadecimal digits")
            yield Token(kind=WordKind.BYTES, value=bytes.fromhex("0" * (len(digits) % 2) + digits), at=at)
            end = match.end()
        elif match := _NUMBER.match(text, at):
            end = match.end()
            if _NAME.match(text, end):
                raise refused(parameter, text, at, "not a number; quote a column name with backquotes")
            yield Token(kind=WordKind.NUMBER, value=number(parameter, text, at, match[0]), at=at)
        elif match := _NAME.match(text, at):
            yield Token(kind=WordKind.NAME, value=match[0], at=at)
            end = match.end()
        elif text[at] in "'\"`":
            value, end = _quoted(parameter, text, at)
            yield Token(kind=WordKind.QUOTED if text[at] == "`" else WordKind.STRING, value=value, at=at)
        elif match := _SYMBOL.match(text, at):
            yield Token(kind=WordKind.SYMBOL, value=match[0], at=at)
            end = match.end()
        else:
            raise refused(parameter, text, at, f"unexpected {text[at]!r}")
        at = end
    yield Token(kind=WordKind.END, value="", at=len(text))


def number(parameter: str, text: str, at: int, shown: str) -> Decimal:
    """The exact value of a number's text."""
    digits, _, exponent = shown.lower().partition("e")
    if len(digits) > _DIGITS_MAX or (exponent and (len(exponent) > 5 or abs(int(exponent)) > _EXPONENT_MAX)):
        raise refused(parameter, text, at, f"a number of more than {_DIGITS_MAX} digits or beyond 1e{_EXPONENT_MAX}")
    return Decimal(shown)


def _quoted(parameter: str, text: str, start: int) -> tuple[str, int]:
    """(the text between the quotes, the place after them). In strings a backslash escapes as in MySQL, where \\%
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


_DEPTH_MAX = 50  # of parentheses and NOT
_SWAPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARISONS = {**{op: op for op in _SWAPPED}, "!=": "<>"}
_RESERVED = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
_TEMPORAL = frozenset({"DATE", "TIME", "TIMESTAMP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnName:
    """A column."""

    name: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A constant; None is NULL. Booleans are the numbers 1 and 0."""

    value: Decimal | str | bytes | None
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """`column op other`."""

    column: ColumnName
    op: str  #: = <> < <= > >=
    other: ColumnName | Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class In:
    """`column IN (items)`."""

    column: ColumnName
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """`column LIKE pattern`."""

    column: ColumnName
    pattern: str
    escape: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """`column IS NULL`."""

    column: ColumnName


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """The negation; unknown stays unknown."""

    inner: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """OR."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Compare | In | Like | IsNull | Not | Every | Some


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed expression of a parameter."""

    parameter: str
    text: str
    root: Condition

    def columns(self) -> Iterator[ColumnName]:
        """The columns that it names, once for each place."""
        return _columns(self.root)

    def patterns(self) -> Iterator[str]:
        """The patterns of LIKE."""
        return (each.pattern for each in _tests(self.root) if isinstance(each, Like))


def _columns(condition: Condition) -> Iterator[ColumnName]:
    for test in _tests(condition):
        yield test.column
        if isinstance(test, Compare) and isinstance(test.other, ColumnName):
            yield test.other


def _tests(condition: Condition) -> Iterator[Compare | In | Like | IsNull]:
    match condition:
        case Every(parts=parts) | Some(parts=parts):
            for part in parts:
                yield from _tests(part)
        case Not(inner=inner):
            yield from _tests(inner)
        case _:
            yield condition


def parse_expression(text: str, parameter: str = "where") -> Expression:
    """The expression of a text. FilterInvalid with the position for anything else."""
    parser = _Parser(parameter, text)
    root = parser.condition()
    parser.expect_end()
    return Expression(parameter=parameter, text=text, root=root)


class _Parser:
    def __init__(self, parameter: str, text: str) -> None:
        self._parameter, self._text = parameter, text
        self._tokens, self._next, self._depth = tokens(parameter, text), 0, 0

    def condition(self) -> Condition:
        """An OR of conjunctions."""
        parts = self._joined(self._conjunction, "OR", "||")
        return parts[0] if len(parts) == 1 else Some(parts=parts)

    def expect_end(self) -> None:
        """Refuse anything that follows."""
        if self._token.kind is not WordKind.END:
            raise self._refused("AND, OR or the end is expected here")

    def _conjunction(self) -> Condition:
        parts = self._joined(self._negation, "AND", "&&")
        return parts[0] if len(parts) == 1 else Every(parts=parts)

    def _joined(self, read: Callable[[], Condition], word: str, symbol: str) -> tuple[Condition, ...]:
        parts = [read()]
        while self._takes(word) or self._takes_symbol(symbol):
            parts.append(read())
        return tuple(parts)

    def _negation(self) -> Condition:
        if not self._takes("NOT"):
            return self._test()
        with_not = self._deeper(self._negation)
        return Not(inner=with_not)

    def _deeper(self, read: Callable[[], Condition]) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._refused(f"more than {_DEPTH_MAX} parentheses and NOT inside each other")
        condition = read()
        self._depth -= 1
        return condition

    def _test(self) -> Condition:
        if self._takes_symbol("("):
            inner = self._deeper(self.condition)
            self._require_symbol(")")
            return inner
        left = self._operand()
        if (op := _COMPARISONS.get(str(self._token.value))) and self._token.kind is WordKind.SYMBOL:
            self._next += 1
            return self._compared(left, op, self._operand())
        if not isinstance(left, ColumnName):
            raise self._refused("a comparison is expected after a constant")
        if self._takes("IS"):
            negated = self._takes("NOT")
            if not self._takes("NULL"):
                raise self._refused("NULL is expected here")
            return self._negated(IsNull(column=left), negated)
        negated = self._takes("NOT")
        return self._negated(self._predicate(left), negated)

    def _compared(self, left: ColumnName | Literal, op: str, right: ColumnName | Literal) -> Compare:
        if isinstance(left, ColumnName):
            return Compare(column=left, op=op, other=right)
        if isinstance(right, ColumnName):
            return Compare(column=right, op=_SWAPPED[op], other=left)
        raise refused(self._parameter, self._text, left.at, "a comparison needs a column")

    def _predicate(self, column: ColumnName) -> Condition:
        if self._takes("IN"):
            self._require_symbol("(")
            items = [self._literal()]
            while self._takes_symbol(","):
                items.append(self._literal())
            self._require_symbol(")")
            return In(column=column, items=tuple(items))
        if self._takes("BETWEEN"):
            low = self._literal()
            if not self._takes("AND"):
                raise self._refused("AND is expected here")
            high = self._literal()
            return Every(
                parts=(Compare(column=column, op=">=", other=low), Compare(column=column, op="<=", other=high))
            )
        if self._takes("LIKE"):
            at, pattern = self._token.at, self._string("a pattern in quotes")
            escape = self._string("one character in quotes") if self._takes("ESCAPE") else "\\"
            if len(escape) > 1:
                raise refused(self._parameter, self._text, at, "ESCAPE takes one character, or none")
            return Like(column=column, pattern=pattern, escape=escape, at=at)
        raise self._refused("a comparison, IN, BETWEEN, LIKE or IS is expected here")

    def _operand(self) -> ColumnName | Literal:
        token = self._token
        if token.kind is WordKind.QUOTED or (token.kind is WordKind.NAME and not self._begins_literal()):
            name = str(token.value)
            if token.kind is WordKind.NAME and name.upper() in _RESERVED:
                raise self._refused("a column or a constant is expected here; quote a column name with backquotes")
            self._next += 1
            return ColumnName(name=name, at=token.at)
        return self._literal()

    def _begins_literal(self) -> bool:
        """Whether the current name begins a constant: TRUE, FALSE, NULL, or DATE '...'."""
        word = str(self._token.value).upper()
        follows = self._tokens[self._next + 1].kind
        return word in ("TRUE", "FALSE", "NULL") or (word in _TEMPORAL and follows is WordKind.STRING)

    def _literal(self) -> Literal:
        at = self._token.at
        for word, value in (("TRUE", Decimal(1)), ("FALSE", Decimal(0)), ("NULL", None)):
            if self._takes(word):
                return Literal(value=value, at=at)
        is_temporal = self._token.kind is WordKind.NAME and self._begins_literal()
        self._next += is_temporal
        minus = not is_temporal and self._takes_symbol("-")
        is_signed = minus or (not is_temporal and self._takes_symbol("+"))
        token = self._token
        if not is_temporal and isinstance(token.value, Decimal):
            self._next += 1
            return Literal(value=token.value.copy_negate() if minus else token.value, at=at)
        if not is_signed and token.kind in (WordKind.STRING, WordKind.BYTES):
            self._next += 1
            return Literal(value=token.value, at=at)
        raise self._refused("a constant is expected here")

    def _string(self, what: str) -> str:
        token = self._token
        if token.kind is not WordKind.STRING:
            raise self._refused(f"{what} is expected here")
        self._next += 1
        return str(token.value)

    @staticmethod
    def _negated(condition: Condition, negated: bool) -> Condition:
        return Not(inner=condition) if negated else condition

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _takes(self, word: str) -> bool:
        """Go past a word of the grammar if it is next."""
        is_there = self._token.kind is WordKind.NAME and str(self._token.value).upper() == word
        self._next += is_there
        return is_there

    def _takes_symbol(self, symbol: str) -> bool:
        is_there = self._token.kind is WordKind.SYMBOL and self._token.value == symbol
        self._next += is_there
        return is_there

    def _require_symbol(self, symbol: str) -> None:
        if not self._takes_symbol(symbol):
            raise self._refused(f"{symbol!r} is expected here")

    def _refused(self, cause: str) -> Exception:
        return refused(self._parameter, self._text, self._token.at, cause)
