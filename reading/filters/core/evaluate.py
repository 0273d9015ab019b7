"""Evaluates row expressions on Arrow columns: true, false or null (unknown) for each row, as in SQL.

A comparison with NULL is unknown, NOT keeps it unknown, AND and OR follow Kleene's tables. A column that the table
does not have counts as NULL in all its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import ROUND_FLOOR, Context, Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reading.filters.core.literals import DoesNotFit, Scale, are_comparable, constant, on_scale, scale_of
from reading.filters.core.refusal import refused
from reading.filters.core.regexes import found
from reading.filters.core.syntax import (
    ColumnName,
    Compare,
    Condition,
    Every,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Some,
)
from schemas.names import folded
from tistream.codec.row.layout import ColumnSpec, ValueKind, kind_of

_OPERATORS: dict[str, Callable[..., pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_EXACT = Context(prec=1000)
_DIGITS_MAX = 76  # of Arrow's widest decimal

Columns = Mapping[str, tuple[ColumnSpec, pa.Array]]  #: by folded name, in storage form


def evaluate(expression: Expression, table: str, columns: Columns, rows: int) -> pa.BooleanArray:
    """The value of the expression in each row. FilterInvalid when a constant does not fit a column of the table."""
    return _Evaluation(expression, table, columns, rows).of(expression.root)


class _Evaluation:
    def __init__(self, expression: Expression, table: str, columns: Columns, rows: int) -> None:
        self._expression, self._table, self._columns, self._rows = expression, table, columns, rows

    def of(self, condition: Condition) -> pa.Array:
        match condition:
            case Every(parts=parts):
                return reduce(pc.and_kleene, map(self.of, parts))
            case Some(parts=parts):
                return reduce(pc.or_kleene, map(self.of, parts))
            case Not(inner=inner):
                return pc.invert(self.of(inner))
        at = condition.at if isinstance(condition, Like) else self._place(condition)
        column = self._columns.get(folded(condition.column.name))
        if column is None:
            return self._all(True if isinstance(condition, IsNull) else None)
        try:
            return self._test(condition, *column)
        except DoesNotFit as e:
            cause = f"in table {self._table} {e}"
            raise refused(self._expression.parameter, self._expression.text, at, cause, table=self._table) from e

    @staticmethod
    def _place(condition: Compare | In | IsNull) -> int:
        return condition.other.at if isinstance(condition, Compare) else condition.column.at

    def _test(self, condition: Compare | In | IsNull | Like, spec: ColumnSpec, values: pa.Array) -> pa.Array:
        match condition:
            case IsNull():
                return values.is_null()
            case Like(pattern=pattern, escape=escape):
                return _like(spec, values, pattern, escape)
            case In(items=items):
                return reduce(pc.or_kleene, self._memberships(spec, values, items))
            case Compare(op=op, other=ColumnName(name=name)):
                other = self._columns.get(folded(name))
                return self._all(None) if other is None else _compared_columns(op, spec, values, *other)
            case Compare(op=op, other=Literal() as literal):
                if literal.value is None:
                    return self._all(None)
                made = constant(spec, literal)
                return compare(on_scale(spec, values, made.scale), op, made.value)

    def _memberships(self, spec: ColumnSpec, values: pa.Array, items: Any) -> list[pa.Array]:
        """One mask for each scale of the items; unknown everywhere for a NULL among them."""
        masks, sets = list[pa.Array](), dict[Scale, list[Any]]()
        for item in items:
            if item.value is None:
                masks.append(self._all(None))
            else:
                made = constant(spec, item)
                sets.setdefault(made.scale, []).append(made.value)
        for scale, wanted in sets.items():
            array = on_scale(spec, values, scale)
            known = [n for v in wanted if (n := _same_in(array.type, v)) is not None]
            inside = pc.is_in(array, pa.array(known, array.type))
            masks.append(pc.if_else(array.is_valid(), inside, pa.scalar(None, pa.bool_())))
        return masks

    def _all(self, value: bool | None) -> pa.Array:
        return pa.repeat(pa.scalar(value, pa.bool_()), self._rows)


def compare(values: pa.Array, op: str, wanted: Decimal | float | str | bytes) -> pa.Array:
    """The comparison of a column with a constant, exact also where the column's type cannot hold the constant."""
    if not isinstance(wanted, Decimal):
        return _OPERATORS[op](values, pa.scalar(wanted, values.type))
    scaled = wanted.scaleb(_digits_after_point(values.type), _EXACT)
    floor = int(scaled.to_integral_value(ROUND_FLOOR, _EXACT))
    exact = floor == scaled
    if op in ("=", "<>"):
        same = _bounded(values, "=", floor) if exact else _constantly(values, False)
        return same if op == "=" else pc.invert(same)
    if op in ("<", "<="):
        return _bounded(values, "<=", floor - (exact and op == "<"))
    return _bounded(values, ">=", floor + (not exact or op == ">"))


def _same_in(type_: pa.DataType, wanted: Decimal | float | str | bytes) -> Any:
    """The constant as a value of the type; None when none equals it."""
    if not isinstance(wanted, Decimal):
        return wanted
    scaled = wanted.scaleb(_digits_after_point(type_), _EXACT)
    low, high = _range(type_)
    if scaled != scaled.to_integral_value(ROUND_FLOOR, _EXACT) or not low <= scaled <= high:
        return None
    return _value(type_, int(scaled))


def _bounded(values: pa.Array, op: str, wanted: int) -> pa.Array:
    low, high = _range(values.type)
    if not low <= wanted <= high:
        return _constantly(values, op != "=" and (wanted > high) == (op == "<="))
    return _OPERATORS[op](values, pa.scalar(_value(values.type, wanted), values.type))


def _constantly(values: pa.Array, value: bool) -> pa.Array:
    """The value where the column is not NULL."""
    return pc.if_else(values.is_valid(), pa.scalar(value), pa.scalar(None, pa.bool_()))


def _digits_after_point(type_: pa.DataType) -> int:
    return int(type_.scale) if pa.types.is_decimal(type_) else 0


def _range(type_: pa.DataType) -> tuple[int, int]:
    """The range of a type, in units of its last digit."""
    if pa.types.is_decimal(type_):
        top = 10**type_.precision - 1
        return -top, top
    bits = type_.bit_width
    return (0, 2**bits - 1) if pa.types.is_unsigned_integer(type_) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _value(type_: pa.DataType, units: int) -> int | Decimal:
    return Decimal(units).scaleb(-type_.scale, _EXACT) if pa.types.is_decimal(type_) else units


def _compared_columns(op: str, left: ColumnSpec, a: pa.Array, right: ColumnSpec, b: pa.Array) -> pa.Array:
    if not are_comparable(left, right):
        raise DoesNotFit(f"columns {left.name} and {right.name} have types that are not compared with each other")
    scale = scale_of(left) if scale_of(right) is not Scale.FLOAT else Scale.FLOAT
    a, b = on_scale(left, a, scale), on_scale(right, b, scale)
    if scale is Scale.COUNT and a.type != b.type:
        a, b = _in_one_type(left, a, right, b)
    return _OPERATORS[op](a, b)


def _in_one_type(left: ColumnSpec, a: pa.Array, right: ColumnSpec, b: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Whole numbers and decimals in a decimal that holds both."""
    after = max(_digits_after_point(a.type), _digits_after_point(b.type))
    before = max(len(str(_range(v.type)[1])) - _digits_after_point(v.type) for v in (a, b))
    if before + after > _DIGITS_MAX:
        raise DoesNotFit(f"columns {left.name} and {right.name} have too many digits to be compared with each other")
    type_ = pa.decimal256(before + after, after)
    return a.cast(type_), b.cast(type_)


def _like(spec: ColumnSpec, values: pa.Array, pattern: str, escape: str) -> pa.Array:
    scale = scale_of(spec)
    if scale not in (Scale.TEXT, Scale.BYTES):
        raise DoesNotFit(f"column {spec.name} is not text: LIKE compares text")
    if kind_of(spec) is ValueKind.BINARY:
        pattern = pattern.encode().decode("latin-1")
        values = values.cast(pa.binary())
    parts, at = ["(?s)^"], 0
    while at < len(pattern):
        c = pattern[at]
        if escape and c == escape and at + 1 < len(pattern):
            at += 1
            parts.append(_quoted(pattern[at], spec))
        else:
            parts.append({"%": ".*", "_": "."}.get(c) or _quoted(c, spec))
        at += 1
    texts = on_scale(spec, values, scale)
    passed = found(texts, "".join([*parts, "$"]), linear="." not in parts)
    return pc.if_else(texts.is_valid(), pa.array(passed), None)


def _quoted(character: str, spec: ColumnSpec) -> str:
    """One character as itself; a byte of a binary column by its number."""
    if kind_of(spec) is ValueKind.BINARY:
        return f"\\x{ord(character):02x}"
    return re.escape(character)
