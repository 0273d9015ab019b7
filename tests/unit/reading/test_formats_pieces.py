"""The byte writers against independent writers of the same texts."""

from __future__ import annotations

import base64
import csv
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading.formats import pieces
from reading.formats.lines import Block, write, written
from reading.formats.pieces import HEX, JSON, JSON_HTML, JSON_LATIN1_HTML, JSON_ONE_LINE, Piece, Slot
from tistream.errors import TiStreamError

ANY_TIME = settings(deadline=None)  # the first call loads compiled code

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=8)
BYTES = st.lists(st.none() | st.binary(max_size=12), max_size=8)


def lines(*parts: Piece, rows: int | None = None) -> list[bytes]:
    count = next((len(p) for p in parts if isinstance(p, Slot)), rows)
    assert count is not None
    array = written([Block(at=np.arange(count), pieces=parts)])
    assert array.type == pa.large_binary()
    assert array.null_count == 0
    return list(array.to_pylist())


@ANY_TIME
@given(TEXTS)
def test_json_strings_read_back(texts: list[str | None]) -> None:
    for table in (JSON, JSON_HTML, JSON_ONE_LINE):
        assert [json.loads(line) for line in lines(pieces.quoted(pa.array(texts, pa.string()), table))] == texts


@ANY_TIME
@given(TEXTS)
def test_escaped_strings_have_no_line_break_and_no_markup(texts: list[str | None]) -> None:
    for line in lines(pieces.quoted(pa.array(texts, pa.string()), JSON_HTML)):
        text = line.decode()
        assert len(text.splitlines()) == 1 or set(text) & set("\x85")
        assert not set(text) & set("<>&\u2028\u2029")


@ANY_TIME
@given(BYTES)
def test_latin1_json_reads_back_as_one_character_a_byte(values: list[bytes | None]) -> None:
    texts = [json.loads(line) for line in lines(pieces.quoted(pa.array(values, pa.binary()), JSON_LATIN1_HTML))]
    assert texts == [None if v is None else v.decode("latin-1") for v in values]


@ANY_TIME
@given(BYTES)
def test_hex_and_base64(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    assert lines(pieces.slot(array, HEX, null=b"-")) == [b"-" if v is None else v.hex().encode() for v in values]
    expected = [None if v is None else base64.b64encode(v).decode() for v in values]
    assert pieces.base64_text(array).to_pylist() == expected


@ANY_TIME
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8), min_size=1, max_size=5)
)
def test_doubled_quotes_are_csv(texts: list[str]) -> None:
    table = pieces.byte_map({ord('"'): b'""'})
    record = b",".join(lines(pieces.slot(pa.array(texts), table, before=b'"', after=b'"'))).decode()
    assert next(csv.reader(io.StringIO(record, newline=""))) == texts


def test_slices_are_read_from_where_they_start() -> None:
    whole = pa.array(["aa", None, 'b"', "\u2028", "cc"])
    assert lines(pieces.quoted(whole.slice(2, 2), JSON_HTML)) == [b'"b\\""', b'"\\u2028"']
    assert lines(pieces.bare(whole.slice(1, 1))) == [b"null"]
    assert lines(pieces.bare(whole.slice(5))) == []


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        # vectors from the documentation of Go's strconv.Quote
        ("Hello, 世界".encode(), "Hello, 世界"),
        (b'"Fran & Freddie\'s Diner\t\xe2\x98\xba"', '\\"Fran & Freddie\'s Diner\\t☺\\"'),
        (b"\x00\xff\x7f\x1b", "\\x00\\xff\\x7f\\x1b"),
        (b"\a\b\f\n\r\t\v\\", "\\a\\b\\f\\n\\r\\t\\v\\\\"),
        (b"\xe2\x98", "\\xe2\\x98"),  # cut off
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),  # a surrogate is no character
        (b"\xc0\x80", "\\xc0\\x80"),  # too long a form
        (b"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"),  # beyond the last code point
        ("\u00a0\u200b\ufeff".encode(), "\\u00a0\\u200b\\ufeff"),
        ("\U0001f600\U000e0001".encode(), "\U0001f600\\U000e0001"),
        ("\ufffd".encode(), "\ufffd"),
    ],
)
def test_go_quoted_text(value: bytes, quoted: str) -> None:
    texts = pieces.go_quoted(pa.array([None, value], pa.binary()))
    assert texts.to_pylist() == [None, quoted.encode()]


@pytest.mark.parametrize(
    ("plain", "json_text", "csv_text"),
    [
        ("0", b"0", b"0"),
        ("-90.6", b"-90.6", b"-90.6"),
        ("1000000", b"1000000", b"1e+06"),
        ("999999", b"999999", b"999999"),
        ("-1004321.6738710991", b"-1004321.6738710991", b"-1.0043216738710991e+06"),
        ("0.0001", b"0.0001", b"0.0001"),
        ("0.00001", b"0.00001", b"1e-05"),
        ("0.0000001", b"1e-07", b"1e-07"),
        ("0.00000012", b"1.2e-07", b"1.2e-07"),
        ("100000000000000000000", b"100000000000000000000", b"1e+20"),
        ("1000000000000000000000", b"1e+21", b"1e+21"),
        ("12" + "0" * 299, b"1.2e+300", b"1.2e+300"),
        ("-0." + "0" * 307 + "22250738585072014", b"-2.2250738585072014e-308", b"-2.2250738585072014e-308"),
    ],
)
def test_floats_in_go_style(plain: str, json_text: bytes, csv_text: bytes) -> None:
    array = pa.array([plain, None])
    assert pieces.styled_floats(array, low=-6, high=21).to_pylist() == [json_text, None]
    assert pieces.styled_floats(array, low=-4, high=6).to_pylist() == [csv_text, None]


def test_a_slot_of_another_length_is_refused() -> None:
    with pytest.raises(TiStreamError, match="value for each line"):
        Block(at=np.arange(2), pieces=[b"x", pieces.bare(pa.array(["a"]))])


def test_a_byte_becomes_itself_or_several_bytes() -> None:
    for entry in (b"", b"x", b"123456789"):
        with pytest.raises(TiStreamError, match="becomes several"):
            pieces.byte_map({65: entry})


def test_constants_alone_give_a_line_a_row() -> None:
    assert lines(b"a", b"b", rows=3) == [b"ab"] * 3
    assert lines(rows=2) == [b"", b""]


def test_a_choice_and_a_slot_that_is_not_in_every_row() -> None:
    mask = np.array([True, False, True])
    values = pieces.bare(pa.array(["1", "2", None]), quote=True)
    assert lines(pieces.choice(mask, b"yes", b"no")) == [b"yes", b"no", b"yes"]
    assert lines(b"<", pieces.only(mask, values.within(b"v=", b";")), b">") == [b'<v="1";>', b"<>", b"<v=null;>"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_numbers_of_all_widths(kind: pa.DataType) -> None:
    bits = kind.bit_width
    signed = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0, None, -100, 99, 10, 9]
    unsigned = [2**bits - 1, 0, None, 100, 99, 10, 9]
    for values, of in ((signed, kind), (unsigned, pa.type_for_alias(f"uint{bits}"))):
        array = pa.array(values, of)
        texts = [b"null" if v is None else b"%d" % v for v in values]
        assert lines(pieces.bare(array)) == texts
        assert lines(pieces.bare(array.slice(2, 3))) == texts[2:5]
        assert lines(pieces.bare(array, quote=True))[0] == b'"%b"' % texts[0]


@ANY_TIME
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_numbers_read_back(values: list[int | None]) -> None:
    assert [json.loads(line) for line in lines(pieces.bare(pa.array(values, pa.int64())))] == values


SLOTS = st.lists(
    st.tuples(
        st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=3, max_size=3),
        st.lists(st.booleans(), min_size=3, max_size=3),
        st.sampled_from([None, JSON, JSON_ONE_LINE, HEX]),
        st.tuples(*[st.binary(max_size=3)] * 4),
    ),
    max_size=5,
)


def mapped(text: str, style: pieces.ByteMap | None) -> bytes:
    if style is None:
        return text.encode()
    if style is HEX:
        return text.encode().hex().encode()
    whole = json.dumps(text, ensure_ascii=False)[1:-1].replace("\\b", "\\u0008").replace("\\f", "\\u000c")
    if style is JSON_ONE_LINE:
        whole = whole.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return whole.encode()


@ANY_TIME
@given(SLOTS, st.permutations(range(6)), st.sampled_from([b"", b"\r\n"]))
def test_lines_of_several_blocks_are_in_order(
    slots: list[tuple[list[str | None], list[bool], pieces.ByteMap | None, tuple[bytes, ...]]],
    order: list[int],
    end: bytes,
) -> None:
    parts: list[Piece] = []
    expected = [b""] * 3
    for texts, present, style, (lead, before, after, instead) in slots:
        values = pieces.slot(pa.array(texts, pa.string()), style, before=before, after=after, null=instead)
        parts += [lead, values if all(present) else pieces.only(np.array(present), values)]
        for n, text in enumerate(texts):
            value = instead if text is None else before + mapped(text, style) + after
            expected[n] += lead + value * present[n]
    blocks = [Block(at=np.array(order[:3]), pieces=parts), Block(at=np.array(order[3:]), pieces=[*parts, b"!"])]
    offsets, data = write(blocks, end=end)
    places = dict(zip(order, [*expected, *(w + b"!" for w in expected)], strict=True))
    assert data.tobytes() == b"".join(places[n] + end for n in range(6))
    assert np.diff(offsets.astype(np.int64)).tolist() == [len(places[n] + end) for n in range(6)]
