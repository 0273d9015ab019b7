"""Options and partitions of a table (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.restore.parser import Parser, Unsupported
from schemas.restore.tokens import TokenKind

_TTL_OFF = "/*T![ttl] TTL_ENABLE = 'OFF' */"


@dataclass(frozen=True, slots=True)
class Option:
    """A restored option; the value of a charset or collation is needed again where an ALTER has both."""

    text: str
    kind: str = ""
    value: str = ""


def options(p: Parser) -> list[Option]:
    """The options that come next, separated by spaces or commas."""
    given: list[Option] = []
    while True:
        option = _option(p)
        if option is None:
            return given
        given.append(option)
        if p.next.upper == "," and _begins(p.ahead(1).upper, p.ahead(2).upper):
            p.take()


def shown(given: list[Option]) -> str:
    """Options as CREATE TABLE has them."""
    return "".join(" " + option.text for option in given if option.text)


_FIRST = frozenset([
    "COMMENT", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENGINE", "AUTO_INCREMENT", "AUTO_ID_CACHE",
    "SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "TTL", "TTL_ENABLE",
])  # fmt: skip


def _begins(word: str, second: str) -> bool:
    return word in _FIRST and second != "COLUMN"


def _option(p: Parser) -> Option | None:
    if p.next.kind is not TokenKind.WORD or p.next.upper not in _FIRST:
        return None
    p.accept("DEFAULT")
    if p.accept("CHARACTER", "SET") or p.accept("CHARSET"):
        p.accept("=")
        name = p.charset_name().upper()
        return Option(f"DEFAULT CHARACTER SET = {name}", "charset", name)
    if p.accept("COLLATE"):
        p.accept("=")
        name = p.charset_name().upper()
        return Option(f"DEFAULT COLLATE = {name}", "collate", name)
    word = p.one_of(_FIRST)
    p.accept("=")
    if word == "COMMENT":
        return Option(f"COMMENT = {p.string()}")
    if word == "ENGINE":
        return Option(f"ENGINE = {p.charset_name()}")
    if word == "AUTO_INCREMENT":
        return Option(f"AUTO_INCREMENT = {p.number()}")
    if word == "AUTO_ID_CACHE":
        return Option(f"/*T![auto_id_cache] AUTO_ID_CACHE = {p.number()} */")
    if word in ("SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS"):
        return Option(f"/*T! {word} = {p.number()} */")
    if word == "TTL":
        return Option(f"/*T![ttl] TTL = {p.interval()} */ {_TTL_OFF}")
    if word == "TTL_ENABLE":
        p.string()
        return Option("")  # TiCDC switches TTL off at the target, whatever the source has
    raise Unsupported(p.next.value)


def partitioning(p: Parser) -> str:
    """What follows PARTITION BY."""
    columns = False
    if p.accept("HASH"):
        head = f"HASH {p.bracketed(p.expression, ', ')}"
    elif p.accept("KEY"):
        head = f"KEY {p.bracketed(p.name, ',')}"
    elif method := p.one_of(("RANGE", "LIST")):
        columns = p.accept("COLUMNS")
        inside = p.bracketed(p.name, ",") if columns else p.bracketed(p.expression, ", ")
        head = f"{method}{' COLUMNS' * columns} {inside}"
    else:
        raise Unsupported(p.next.value)
    count = f" PARTITIONS {p.number()}" if p.accept("PARTITIONS") else ""
    if p.next.upper == "(":
        if count:
            raise Unsupported("PARTITIONS with definitions")
        return f"{head} {definitions(p, ',')}"
    if not count:
        raise Unsupported("no partitions")
    return head + count


def definitions(p: Parser, separator: str) -> str:
    """The partitions in parentheses."""
    return p.bracketed(lambda: _definition(p), separator)


def _definition(p: Parser) -> str:
    p.expect("PARTITION")
    name = p.name()
    if p.accept("VALUES", "LESS", "THAN"):
        values = "(MAXVALUE)" if p.accept("MAXVALUE") else p.bracketed(lambda: _bound(p), ", ")
        return f"PARTITION {name} VALUES LESS THAN {values}"
    if p.accept("VALUES", "IN"):
        if p.ahead(1).upper in ("(", "DEFAULT"):
            raise Unsupported("values of several columns")
        return f"PARTITION {name} VALUES IN {p.bracketed(p.expression, ', ')}"
    if p.accept("DEFAULT"):
        return f"PARTITION {name} DEFAULT"
    raise Unsupported(p.next.value)


def _bound(p: Parser) -> str:
    return "MAXVALUE" if p.accept("MAXVALUE") else p.expression()
