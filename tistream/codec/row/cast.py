"""Converts stored values as MODIFY COLUMN does, where the result is certain.

`cast` converts a column in storage form from one definition to another, as TiDB does when it changes a column's type.
A value is converted only if every reading of the rules gives the same result, else it is refused. Nothing is rounded,
cut or guessed, except by a rule that MySQL and TiDB share: a DECIMAL that loses fraction digits is rounded half away
from zero. docs/asof.md lists what is exact and why.

The success of the DDL proves nothing, because TiDB clamps and cuts without strict mode; a value that does not fit is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.row.layout import (
    BLOB,
    DATE,
    DATETIME,
    LONGBLOB,
    MEDIUMBLOB,
    NEWDATE,
    STRING,
    TIMESTAMP,
    TINYBLOB,
    ColumnSpec,
    ValueKind,
    decimal_shape,
    fsp_of,
    kind_of,
    storage_type,
)
from tistream.codec.row.text import float_plain, members, numbers, text
from tistream.model.arrays import Mask

Result = tuple[pa.Array, Mask]  # values, and which of them are certain
Rule = Callable[[ColumnSpec, ColumnSpec, pa.Array], Result]

_WHOLE = frozenset({ValueKind.SIGNED, ValueKind.UNSIGNED})
_BLOBS = frozenset({TINYBLOB, BLOB, MEDIUMBLOB, LONGBLOB})
_TIME_OF_DAY = (1 << 41) - 1  # of a packed time: hours, minutes, seconds, microseconds
_EXACT_DOUBLE, _EXACT_FLOAT = 1 << 53, 1 << 24
_SAFE_DECIMAL_DIGITS = 15  # any such decimal has one nearest double
_TEN_DIGITS = 38


def cast(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """(values in the storage form of `new`, which of them are certain). NULL stays NULL, unless `new` forbids it.

    A value that is not certain is NULL in the result."""
    kind, wanted = kind_of(old), kind_of(new)
    rule = _RULES.get((kind, wanted))
    result, sure = _nothing(new, values) if rule is None else rule(old, new, values)
    if wanted is ValueKind.TEXT and new.charset not in (old.charset, "utf8mb4", ""):
        sure &= _true(pc.string_is_ascii(result))
    null = values.is_null().to_numpy(zero_copy_only=False)
    sure = (sure & ~null) | (null & (not new.not_null))
    keep = pa.array(sure & ~null)
    return pc.if_else(keep, result, pa.scalar(None, storage_type(new))), sure


def in_place(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """The same after a change of the definition that kept the column's id and stored bytes."""
    return (values, _all(values)) if values.type == storage_type(new) else cast(old, new, values)


def _all(values: pa.Array) -> Mask:
    return np.ones(len(values), np.bool_)


def _true(mask: pa.Array) -> Mask:
    """A computed mask without its nulls."""
    filled: Mask = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return filled


def _tried(values: pa.Array, type_: pa.DataType, inside: Mask) -> pa.Array:
    """The values where `inside` holds, in another type; null elsewhere."""
    return pc.if_else(pa.array(inside), values, pa.scalar(None, values.type)).cast(type_)


# ---- numbers


def _to_integer(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Within the range of the new type; without a rule for the rest."""
    low, high = _range(new)
    wide = values.cast(pa.decimal128(_TEN_DIGITS, 0))
    fits = pc.and_(
        pc.greater_equal(wide, pa.scalar(low, pa.int64()).cast(wide.type)),
        pc.less_equal(wide, pa.scalar(high, pa.uint64()).cast(wide.type)),
    )
    inside = _true(fits)
    return _tried(values, storage_type(new), inside), inside


def _range(column: ColumnSpec) -> tuple[int, int]:
    bits = 24 if column.tp == 9 else storage_type(column).bit_width
    return (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _integer_to_decimal(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    digits, scale = decimal_shape(new)
    whole = text(old, values)
    return _decimal_of(whole, new, pc.fill_null(pc.less_equal(_digits(whole), digits - scale), False))


def _integer_to_double(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    if new.decimal > 0 or new.unsigned:
        return _nothing(new, values)
    bound = _EXACT_FLOAT if kind_of(new) is ValueKind.FLOAT else _EXACT_DOUBLE
    wide = values.cast(pa.decimal128(_TEN_DIGITS, 0))
    inside = _true(pc.less_equal(pc.abs(wide), pa.scalar(bound, pa.int64()).cast(wide.type)))
    return _tried(values, pa.int64(), inside).cast(storage_type(new)), inside


def _decimal_to_decimal(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """More fraction digits are zeros; fewer are rounded half away from zero."""
    digits, scale = decimal_shape(new)
    old_digits, old_scale = values.type.precision, values.type.scale
    exact = values.cast(pa.decimal256(old_digits + 1, old_scale))  # a digit more: 9.9 may become 10
    if old_scale > scale:
        exact = pc.round(exact, ndigits=scale, round_mode="half_towards_infinity")
    inside = _all(values)
    if digits - scale < old_digits + 1 - old_scale:
        bound = pa.scalar(Decimal(10) ** (digits - scale), pa.decimal256(old_digits + 2, old_scale))
        inside = _true(pc.less(pc.abs(exact), bound))
    if new.unsigned:
        inside &= _true(pc.greater_equal(exact, pa.scalar(Decimal(0), exact.type)))
    return _tried(exact, storage_type(new), inside), inside


def _decimal_to_integer(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Whole numbers only."""
    plain = pc.replace_substring_regex(text(old, values), r"\.0*$", "")
    return _text_to_integer(old, new, pc.replace_substring_regex(plain, r"^-0$", "0"))


def _decimal_to_double(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    if new.decimal > 0 or new.unsigned or values.type.precision > _SAFE_DECIMAL_DIGITS:
        return _nothing(new, values)
    return text(old, values).cast(pa.float64()), _all(values)


def _float_to_double(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    if new.decimal > 0 or new.unsigned:
        return _nothing(new, values)
    return values.cast(pa.float64()), _all(values)


def _decimal_of(plain: pa.Array, new: ColumnSpec, fits: pa.Array) -> Result:
    """Decimal texts that have no more fraction digits than the new column."""
    inside = _true(fits)
    if new.unsigned:
        inside &= ~_true(pc.match_substring_regex(plain, r"^-.*[1-9]"))
    return _tried(plain, storage_type(new), inside), inside


def _digits(whole: pa.Array) -> pa.Array:
    """How many digits an integer's text has, leading zeros not counted."""
    return pc.utf8_length(pc.replace_substring_regex(whole, r"^-?0*", ""))


def _nothing(new: ColumnSpec, values: pa.Array) -> Result:
    return pa.nulls(len(values), storage_type(new)), np.zeros(len(values), np.bool_)


# ---- texts


def _to_text(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """What MySQL prints, where it fits. Not of a ZEROFILL column, whose zeros exist only in print."""
    if old.zerofill:
        return _nothing(new, values)
    return _fitting(new, text(old, values))


def _float_to_text(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Where printing with and without an exponent is the same. (TiDB never uses one here, MySQL does.)"""
    if old.decimal > 0 or old.zerofill:
        return _nothing(new, values)
    plain = float_plain(values, kind_of(old) is ValueKind.FLOAT)
    result, sure = _fitting(new, plain)
    return result, sure & _true(pc.equal(plain, text(old, values)))


def _time_to_text(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Not of a TIMESTAMP: its text depends on the time zone of the session that changed the column."""
    return _nothing(new, values) if old.tp == TIMESTAMP else _fitting(new, text(old, values))


def _year_to_text(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    result, sure = _fitting(new, text(old, values))
    return result, sure & _true(pc.greater(values, 0))


def _text_to_text(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Without the spaces at the end that only some types keep, and without bytes that were no text."""
    result, sure = _fitting(new, values)
    return result, sure & ~_true(pc.match_substring_regex(values, "\ufffd")) & _solid(old, new, values)


def _text_to_binary(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """The same bytes where the charset has them: ASCII is the same in all."""
    ascii_only = _true(pc.string_is_ascii(values))
    result, sure = _fitting(new, values)
    return result, sure & ascii_only & _solid(old, new, values)


def _binary_to_binary(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    if new.tp == STRING or old.tp == STRING:  # BINARY(n) is filled up with zeros
        return _nothing(new, values)
    return values, _true(pc.less_equal(pc.binary_length(values), _bytes_max(new)))


def _solid(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Mask:
    """Which texts do not end in a space, where CHAR is one of the types."""
    if STRING not in (old.tp, new.tp):
        return _all(values)
    return ~_true(pc.ends_with(values, " "))


def _fitting(new: ColumnSpec, plain: pa.Array) -> Result:
    """Texts as values of a column of text or bytes; certain where they are no longer than it allows."""
    length = pc.binary_length(plain)
    if kind_of(new) is ValueKind.BINARY:
        if new.tp == STRING:
            return _nothing(new, plain)
        return plain.cast(pa.binary()), _true(pc.less_equal(length, _bytes_max(new)))
    if new.tp in _BLOBS:
        return plain, _true(pc.less_equal(length, _bytes_max(new)))
    return plain, _true(pc.less_equal(pc.utf8_length(plain), new.flen if new.flen > 0 else 0))


def _bytes_max(column: ColumnSpec) -> int:
    sizes = {TINYBLOB: 255, BLOB: 65_535, MEDIUMBLOB: (1 << 24) - 1, LONGBLOB: (1 << 31) - 1}
    own = column.flen if column.flen > 0 else 0
    return min(sizes.get(column.tp, own), own or sizes.get(column.tp, 0))


def _text_to_integer(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Digits with or without a minus, nothing else."""
    plain = _true(pc.match_substring_regex(values, r"^(0|-?[1-9]\d{0,19})$"))
    return _to_integer(old, new, _tried(values, pa.decimal128(_TEN_DIGITS, 0), plain))


def _text_to_decimal(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Digits with or without minus and fraction, as many as the column has."""
    digits, scale = decimal_shape(new)
    fraction = rf"(\.\d{{1,{scale}}})?" if scale else ""
    plain = pc.match_substring_regex(values, rf"^-?\d+{fraction}$")
    whole = pc.replace_substring_regex(values, r"\..*$", "")
    return _decimal_of(values, new, pc.and_(plain, pc.less_equal(_digits(whole), digits - scale)))


# ---- times


def _time_to_time(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """To as many digits or more; a DATETIME to a DATE if it is midnight. Not between TIMESTAMP and the others."""
    if (old.tp == TIMESTAMP) != (new.tp == TIMESTAMP):
        return _nothing(new, values)
    packed, _ = numbers(values, np.uint64)
    if new.tp in (DATE, NEWDATE):
        return values, (packed & np.uint64(_TIME_OF_DAY)) == 0
    dropped = 10 ** (6 - fsp_of(new)) if new.tp in (DATETIME, TIMESTAMP) else 1
    return values, (packed & np.uint64(0xFFFFFF)) % np.uint64(dropped) == 0


def _duration_to_duration(_: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    nanos, _valid = numbers(values, np.int64)
    return values, nanos % (10 ** (9 - fsp_of(new))) == 0


# ---- labels


def _label_to_enum(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    """Labels that are the same byte for byte; not the error value, and none that collation could confuse."""
    labels = text(old, values)
    index = pc.index_in(labels, value_set=pa.array(new.elems, pa.string()))
    sure = _true(pc.is_valid(index)) & _true(pc.not_equal(labels, ""))
    return pc.add(index.cast(pa.uint64()), pa.scalar(1, pa.uint64())), sure


def _enum_to_set(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    index, sure = _label_to_enum(old, new, values)
    index_of = pc.fill_null(index, pa.scalar(1, pa.uint64())).to_numpy()
    return pa.array(np.uint64(1) << (index_of - np.uint64(1))), sure & ~_true(
        pc.match_substring(text(old, values), ",")
    )


def _set_to_set(old: ColumnSpec, new: ColumnSpec, values: pa.Array) -> Result:
    masks, valid = numbers(values, np.uint64)
    different, back = np.unique(np.where(valid, masks, np.uint64(0)), return_inverse=True)
    place = {label: bit for bit, label in enumerate(new.elems)}
    labels = [members(old, mask) for mask in different.tolist()]
    sure = np.array([all(label in place for label in names) for names in labels], np.bool_)
    made: list[Any] = [sum(1 << place[label] for label in names if label in place) for names in labels]
    return pa.array(np.array(made, np.uint64)[back]), sure[back]


_RULES: dict[tuple[ValueKind, ValueKind], Rule] = {
    **{(a, b): _to_integer for a in (*_WHOLE, ValueKind.YEAR, ValueKind.ENUM, ValueKind.BIT) for b in _WHOLE},
    **{(a, ValueKind.DECIMAL): _integer_to_decimal for a in _WHOLE},
    **{(a, b): _integer_to_double for a in _WHOLE for b in (ValueKind.FLOAT, ValueKind.DOUBLE)},
    (ValueKind.DECIMAL, ValueKind.DECIMAL): _decimal_to_decimal,
    **{(ValueKind.DECIMAL, b): _decimal_to_integer for b in _WHOLE},
    (ValueKind.DECIMAL, ValueKind.DOUBLE): _decimal_to_double,
    (ValueKind.FLOAT, ValueKind.DOUBLE): _float_to_double,
    **{
        (a, b): _to_text
        for a in (*_WHOLE, ValueKind.DECIMAL, ValueKind.DURATION, ValueKind.ENUM, ValueKind.SET)
        for b in (ValueKind.TEXT, ValueKind.BINARY)
        if b is ValueKind.TEXT or a not in (ValueKind.ENUM, ValueKind.SET)
    },
    **{(a, ValueKind.TEXT): _float_to_text for a in (ValueKind.FLOAT, ValueKind.DOUBLE)},
    (ValueKind.TIME, ValueKind.TEXT): _time_to_text,
    (ValueKind.YEAR, ValueKind.TEXT): _year_to_text,
    (ValueKind.TEXT, ValueKind.TEXT): _text_to_text,
    (ValueKind.TEXT, ValueKind.BINARY): _text_to_binary,
    (ValueKind.BINARY, ValueKind.BINARY): _binary_to_binary,
    **{(ValueKind.TEXT, b): _text_to_integer for b in _WHOLE},
    (ValueKind.TEXT, ValueKind.DECIMAL): _text_to_decimal,
    (ValueKind.TIME, ValueKind.TIME): _time_to_time,
    (ValueKind.DURATION, ValueKind.DURATION): _duration_to_duration,
    (ValueKind.ENUM, ValueKind.ENUM): _label_to_enum,
    (ValueKind.TEXT, ValueKind.ENUM): _label_to_enum,
    (ValueKind.ENUM, ValueKind.SET): _enum_to_set,
    (ValueKind.SET, ValueKind.SET): _set_to_set,
}
