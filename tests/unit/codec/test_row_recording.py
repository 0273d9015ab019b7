"""Every user row of the recording: both decoders agree, and other software printed the same text for the same rows."""

import functools
import json
import zlib
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from schemas.layout import row_layout
from tests.kit.recording import committed_rows, expected, recorded_history
from tests.kit.row_reference import decode_row
from tistream.codec.row.decode import decode
from tistream.codec.row.layout import ColumnSpec, RowLayout, ValueKind, kind_of
from tistream.codec.row.native import native, native_type
from tistream.codec.row.text import float_plain, text

Image = tuple[int, bytes, bytes | None, bytes | None]  # commit_ts, key, value, old value


@functools.cache
def images() -> dict[RowLayout, list[Image]]:
    """The rows of all tables known to the schema, by the layout in force just before their commit."""
    history = recorded_history()
    by_layout: dict[RowLayout, list[Image]] = defaultdict(list)
    columns = [committed_rows()[name].to_pylist() for name in ("table_id", "commit_ts", "key", "value", "old_value")]
    for table_id, commit_ts, key, value, old in zip(*columns, strict=True):
        table = history.table_at(table_id, commit_ts - 1)
        if table is not None and commit_ts > history.start_ts:
            by_layout[row_layout(table)].append((commit_ts, key, value, old))
    return by_layout


def decoded_column(rows: list[Image], layout: RowLayout, which: int) -> pa.RecordBatch:
    decoded = decode(
        layout, pa.array([row[1] for row in rows], pa.binary()), pa.array([row[which] for row in rows], pa.binary())
    )
    assert decoded.errors == ()
    return decoded.batch


def test_the_recording_covers_every_kind_of_column() -> None:
    kinds = {kind_of(column) for layout in images() for column in layout.columns}
    assert kinds == set(ValueKind) - {ValueKind.UNKNOWN}
    assert sum(map(len, images().values())) > 10_000


def checksummed() -> list[tuple[RowLayout, bytes, bytes]]:
    """(layout, key, row) of what TiDB wrote with a checksum."""
    return [
        (layout, row[1], raw)
        for layout, rows in images().items()
        for row in rows
        for raw in row[2:]
        if raw is not None and raw[0] == 0x80 and raw[1] & 2
    ]


def test_checksums_that_tidb_wrote_are_over_row_header_and_handle() -> None:
    rows = checksummed()
    assert {raw[-5] for _, _, raw in rows} == {2}
    assert {len(key) == 19 for _, key, _ in rows} == {True, False}  # integer and clustered handles
    for layout, key, raw in rows:
        assert zlib.crc32(raw[:-4] + key[11:]) == int.from_bytes(raw[-4:], "little"), layout.name


def test_a_changed_bit_in_any_byte_of_a_checksummed_row_or_of_its_handle_is_noticed() -> None:
    tried = 0
    for layout, key, raw in checksummed():
        bits = [1 << (8 * at + at % 7) for at in range(len(raw))]
        rows = [(int.from_bytes(raw, "little") ^ bit).to_bytes(len(raw), "little") for bit in bits]
        keys = [key] * len(rows)
        for at in range(11, len(key)):
            keys.append(key[:at] + bytes([key[at] ^ 0x01]) + key[at + 1 :])
            rows.append(raw)
        decoded = decode(layout, pa.array([key, *keys], pa.binary()), pa.array([raw, *rows], pa.binary()))
        assert [error.index for error in decoded.errors] == list(range(1, len(rows) + 1)), (layout.name, raw.hex())
        tried += len(rows)
    assert tried > 3_000


@pytest.mark.parametrize("which", [2, 3], ids=["value", "old value"])
def test_both_decoders_agree_on_every_row(which: int) -> None:
    for layout, rows in images().items():
        batch = decoded_column(rows, layout, which)
        batch.validate(full=True)
        reference_rows = [decode_row(layout, row[1], (row[2], row[3])[which - 2]) for row in rows]
        for c, column in enumerate(layout.columns):
            column_values = batch.column(c)
            want = pa.array([row[c] for row in reference_rows], column_values.type)
            assert column_values.equals(want), (layout.name, column.name)


def canal_form(column: ColumnSpec, values: pa.Array) -> list[str | None]:
    """A column as canal-json shows it."""
    match kind_of(column):
        case ValueKind.BIT | ValueKind.ENUM | ValueKind.SET | ValueKind.YEAR:
            shown = values.cast(pa.string())
        case ValueKind.FLOAT | ValueKind.DOUBLE as kind:
            shown = float_plain(values, kind is ValueKind.FLOAT)
        case ValueKind.BINARY:
            return [None if raw is None else raw.decode("latin-1") for raw in values.to_pylist()]
        case _:
            shown = text(column, values)
    return shown.to_pylist()  # type: ignore[no-any-return]


@functools.cache
def canal_rows() -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The messages of other software about the same changes, by commit and key. An update may be two messages."""
    messages: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in expected("ticdc-canal-json-tidb"):
        if line["kind"] == "row":
            messages[int(line["commit_ts"]), line["key_hex"]].append(json.loads(line["msg"]))
    return messages


def test_text_equals_that_of_canal_json() -> None:
    compared = 0
    for layout, rows in images().items():
        shown = {}
        for which in (2, 3):
            batch = decoded_column(rows, layout, which)
            shown[which] = [canal_form(column, batch.column(c)) for c, column in enumerate(layout.columns)]
        for index, (commit_ts, key, _, _) in enumerate(rows):
            for message in canal_rows().get((commit_ts, key.hex()), ()):
                sides = {2: message["data"]} if message["type"] != "DELETE" else {3: message["data"]}
                if message["old"]:
                    sides[3] = message["old"]
                for which, data in sides.items():
                    texts = {column.name: shown[which][c][index] for c, column in enumerate(layout.columns)}
                    assert texts == data[0], (layout.name, commit_ts, key.hex())
                    compared += 1
    assert compared > 10_000


def test_native_columns_are_valid_arrow_and_lose_only_impossible_dates() -> None:
    for layout, rows in images().items():
        batch = decoded_column(rows, layout, 2)
        for c, column in enumerate(layout.columns):
            stored = batch.column(c)
            array = native(column, stored)
            array.validate(full=True)
            assert array.type == native_type(column)
            if kind_of(column) is not ValueKind.TIME:
                assert array.null_count == stored.null_count
            else:
                shown, want = array.cast(pa.string()).to_pylist(), text(column, stored).to_pylist()
                pairs = [(one, other) for one, other in zip(shown, want, strict=True) if one is not None]
                # Arrow prints six fraction digits and a Z; TiDB the column's digits
                assert all(str(one).removesuffix("Z").startswith(str(other)) for one, other in pairs)
