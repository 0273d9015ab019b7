"""Every column type of TiDB with the ways in which ALTER TABLE ADD COLUMN can add it, and what TiDB then reads from
rows that were written before.

TiDB freezes the value of older rows when it adds the column (`generateOriginDefaultValue`): the DEFAULT as a text, for
NOT NULL without a DEFAULT the text of the type's zero value, else nothing. It casts that text to the column's type when
it reads a row that lacks the column (`getColDefaultValue`, `CastColumnValue`). The tables below are made by hand from
these rules, not by the code under test.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from tistream.codec.row.encode import binary_json, cell, pack_time
from tistream.codec.row.layout import ColumnSpec

_NOT_NULL, _UNSIGNED, _JSON = 1, 32, 245
_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """The value of a DEFAULT, and what follows from it."""

    text: str  #: as TiDB keeps it
    value: Any  #: of a row that lacks the column, in storage form
    shown: Any  #: the same in NDJSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """A column type."""

    sql: str
    tp: int
    zero: Default  #: `GetZeroValue`
    defaults: tuple[Default, ...]
    flag: int = 0
    flen: int = -1
    decimal: int = -1
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """One way of adding a column of the type."""

    type: Type
    not_null: bool
    default: Default | None  #: as the statement has it
    origin: Default | None  #: what TiDB froze
    frozen: bool = True  #: False: the definition does not say it, as those of very old servers

    @property
    def name(self) -> str:
        """The column's definition in SQL."""
        shown = "" if self.default is None else f" DEFAULT {self.default.text!r}"
        shown += " without origin_default" * (not self.frozen)
        return f"{self.type.sql}{' NOT NULL' * self.not_null}{shown}"

    @property
    def cell(self) -> bytes | None:
        """What a row that lacks the column holds, as a row that has it would store it."""
        return None if self.origin is None else stored(self.type, self.origin)

    @property
    def shown(self) -> Any:
        """The same in NDJSON."""
        return None if self.origin is None else self.origin.shown

    def info(self, id_: int, name: str, offset: int) -> dict[str, Any]:
        """TiDB's ColumnInfo."""
        kind, origin = self.type, self.origin.text if self.origin is not None and self.frozen else None
        definition = column_info(kind, id_, name, offset, not_null=self.not_null, origin=origin)
        definition["default"] = None if self.default is None else self.default.text
        return definition


def stored(kind: Type, default: Default) -> bytes:
    """The default's value as a v2 row holds it."""
    if kind.tp == _JSON:
        return binary_json(default.value)
    return cell(
        ColumnSpec(
            id=0, name="", tp=kind.tp, unsigned=bool(kind.flag & _UNSIGNED), flen=kind.flen, decimal=kind.decimal
        ),
        default.value,
    )


def column_info(
    kind: Type, id_: int, name: str, offset: int, *, not_null: bool = False, origin: object = None
) -> dict[str, Any]:
    """TiDB's ColumnInfo of a column of this type."""
    bits = origin.encode("latin-1") if kind.tp == 16 and isinstance(origin, str) else None
    return {
        "id": id_,
        "name": {"O": name, "L": name.lower()},
        "offset": offset,
        "origin_default": origin if bits is None else bits.decode(errors="replace"),  # JSON damages the bytes of a BIT
        "origin_default_bit": None if bits is None else base64.b64encode(bits).decode(),
        "default": None,
        "type": {
            "Tp": kind.tp,
            "Flag": kind.flag | _NOT_NULL * not_null,
            "Flen": kind.flen,
            "Decimal": kind.decimal,
            "Charset": kind.charset,
            "Collate": kind.collate,
            "Elems": list(kind.elems) or None,
        },
        "state": 5,
        "version": 2,
    }


def _same(text: str, value: Any, shown: Any) -> Default:
    return Default(text=text, value=value, shown=shown)


def _number(value: int) -> Default:
    return _same(str(value), value, value if abs(value) < 1 << 53 else str(value))


def _integer(sql: str, tp: int, flen: int, bits: int) -> Iterator[Type]:
    for unsigned in (False, True):
        low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        yield Type(
            sql=sql + " UNSIGNED" * unsigned,
            tp=tp,
            flag=_UNSIGNED * unsigned,
            flen=flen,
            zero=_number(0),
            defaults=(_number(low), _number(high), _number(7)),
        )


def _texts(sql: str, tp: int, flen: int, *, literal: bool) -> Iterator[Type]:
    """The text type and the type of bytes with the same number. BLOB and TEXT have no literal defaults."""
    text, raw = sql.split("/")
    words = ("", "a", "é'\\\u2028 x") if literal else ()
    of_char = tp == 254
    yield Type(
        sql=text,
        tp=tp,
        flen=flen,
        charset="utf8mb4",
        collate="utf8mb4_bin",
        zero=_same("", "", ""),
        defaults=(
            *(_same(word, word, word) for word in words),
            *([_same("b  ", "b" if of_char else "b  ", "b" if of_char else "b  ")] if literal else ()),
        ),
    )
    padded = [(word.encode() + b"\0" * (flen * of_char))[: flen if of_char else None] for word in ("", "ab")]
    shown = [_same(raw_.decode(), raw_, base64.b64encode(raw_).decode()) for raw_ in padded]
    short = replace(shown[1], text="ab")  # as older servers keep it: BINARY(n) is filled up when it is read
    yield Type(sql=raw, tp=tp, flen=flen, zero=shown[0], defaults=(*shown, short) if literal else ())


def _time(text: str, *parts: int) -> Default:
    return _same(text, pack_time(*parts), text)


def _years() -> tuple[Default, ...]:
    """Two digits are of 1970 to 2069; the text 0 is 2000, the text 0000 the zero year."""
    whole = {
        "70": 1970,
        "5": 2005,
        "0": 2000,
        "00": 2000,
        "99": 1999,
        "69": 2069,
        "0000": 0,
        "2001": 2001,
        "2155": 2155,
    }
    return tuple(_same(text, year, year) for text, year in whole.items())


def _decimal(text: str, shown: str) -> Default:
    return _same(text, Decimal(shown), shown)


def _bits(value: int, size: int) -> Default:
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return _same(raw.decode("latin-1"), value, base64.b64encode(value.to_bytes(size, "big")).decode())


def _types() -> Iterator[Type]:
    for sql, tp, flen, bits in (
        ("TINYINT", 1, 4, 8),
        ("SMALLINT", 2, 6, 16),
        ("MEDIUMINT", 9, 9, 24),
        ("INT", 3, 11, 32),
        ("BIGINT", 8, 20, 64),
    ):
        yield from _integer(sql, tp, flen, bits)
    zero = _same("0", 0.0, 0)
    yield Type(sql="FLOAT", tp=4, flen=12, zero=zero, defaults=(_same("1.5", 1.5, 1.5), _same("-0.25", -0.25, -0.25)))
    yield Type(sql="DOUBLE", tp=5, flen=22, zero=zero, defaults=(_same("0.1", 0.1, 0.1), _same("1e100", 1e100, 1e100)))
    yield Type(sql="DOUBLE(6,2)", tp=5, flen=6, decimal=2, zero=zero, defaults=(_same("1.256", 1.26, 1.26),))
    yield Type(
        sql="DECIMAL(10,3)",
        tp=246,
        flen=10,
        decimal=3,
        zero=_decimal("0", "0.000"),
        defaults=(_decimal("1.5", "1.500"), _decimal("-1234567.8915", "-1234567.892")),
    )
    yield Type(
        sql="DECIMAL(65,30)",
        tp=246,
        flen=65,
        decimal=30,
        zero=_decimal("0", "0." + "0" * 30),
        defaults=(_decimal("-" + "9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30),),
    )
    for width, given in ((1, 1), (9, 0x101), (64, (1 << 64) - 1)):
        size = (width + 7) // 8
        yield Type(
            sql=f"BIT({width})", tp=16, flag=_UNSIGNED, flen=width, zero=_bits(0, size), defaults=(_bits(given, size),)
        )
    yield from _times()
    for sql, tp, flen, literal in (
        ("CHAR(5)/BINARY(5)", 254, 5, True),
        ("VARCHAR(20)/VARBINARY(20)", 15, 20, True),
        ("TINYTEXT/TINYBLOB", 249, 255, False),
        ("TEXT/BLOB", 252, 65535, False),
        ("MEDIUMTEXT/MEDIUMBLOB", 250, 16777215, False),
        ("LONGTEXT/LONGBLOB", 251, 4294967295, False),
    ):
        yield from _texts(sql, tp, flen, literal=literal)
    labels = ("x", "Y", "a\\b", "é")
    utf8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
    yield Type(
        sql="ENUM",
        tp=247,
        elems=labels,
        zero=_same("x", 1, "x"),  # the first label
        defaults=(_same("Y", 2, "Y"), _same("a\\b", 3, "a\\b")),
        **utf8,  # type: ignore[arg-type]
    )
    yield Type(
        sql="SET",
        tp=248,
        elems=labels,
        zero=_same("", 0, ""),
        defaults=(_same("x,é", 9, "x,é"), _same("a\\b", 4, "a\\b")),
        **utf8,  # type: ignore[arg-type]
    )
    yield Type(sql="JSON", tp=245, flag=128, zero=_same("null", None, "null"), defaults=())
    yield Type(sql="VECTOR", tp=225, zero=_same("[]", [], []), defaults=())
    yield Type(sql="VECTOR(3)", tp=225, flen=3, zero=_same("[]", [], []), defaults=())


def _times() -> Iterator[Type]:
    zero = _same("0000-00-00", 0, "0000-00-00")
    yield Type(sql="DATE", tp=10, flen=10, zero=zero, defaults=(_time("2024-02-29", 2024, 2, 29),))
    zero = _same("0000-00-00 00:00:00", 0, "0000-00-00 00:00:00")
    moment = (2024, 12, 31, 23, 59, 58)
    for sql, tp in (("DATETIME", 12), ("TIMESTAMP", 7)):  # defaults of a TIMESTAMP are kept in UTC, as its values are
        yield Type(
            sql=sql, tp=tp, flag=128, flen=19, decimal=0, zero=zero, defaults=(_time("2024-12-31 23:59:58", *moment),)
        )
        yield Type(
            sql=sql + "(3)",
            tp=tp,
            flag=128,
            flen=23,
            decimal=3,
            zero=replace(zero, shown="0000-00-00 00:00:00.000"),
            defaults=(_time("2024-12-31 23:59:58.250", *moment, 250_000),),
        )
    yield Type(
        sql="TIME",
        tp=11,
        flen=10,
        decimal=0,
        zero=_same("00:00:00", 0, "00:00:00"),
        defaults=(_same("-838:59:59", -(34 * _DAY_NS + (22 * 3600 + 3599) * 10**9), "-838:59:59"),),
    )
    yield Type(
        sql="TIME(2)",
        tp=11,
        flen=13,
        decimal=2,
        zero=_same("00:00:00", 0, "00:00:00.00"),
        defaults=(_same("12:00:00.25", 43_200_250_000_000, "12:00:00.25"),),
    )
    # a YEAR NOT NULL without a DEFAULT gets the DEFAULT 0000
    yield Type(sql="YEAR", tp=13, flag=_UNSIGNED, flen=4, zero=_same("0000", 0, 0), defaults=_years())


TYPES = tuple(_types())


def additions() -> Iterator[Added]:
    """Every type, NULL and NOT NULL, with each of its defaults and without one."""
    for kind in TYPES:
        for not_null in (False, True):
            yield Added(type=kind, not_null=not_null, default=None, origin=kind.zero if not_null else None)
            if not_null:
                yield Added(type=kind, not_null=True, default=None, origin=kind.zero, frozen=False)
            for default in kind.defaults:
                yield Added(type=kind, not_null=not_null, default=default, origin=default)
