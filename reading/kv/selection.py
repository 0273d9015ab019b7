r"""Which entries of a raw or txn tenant a reader wants: a range of user keys, and regular expressions.

Patterns are TiKV-CDC's `key-pattern` and `value-pattern`: RE2, found anywhere in the bytes, where a byte is the
character of its number (Latin-1), so `\xff` means this byte. A value pattern says nothing about deletes: they pass.
TiKV-CDC itself reads bytes 0x80 to 0x9f as characters of Windows-1252; here they are bytes as well.

A selection changes what a body holds, never what a cursor means, as filters of tables do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.core import page_rows
from reading.filters.core import regexes
from reading.filters.core.refusal import TEXT_MAX, refused
from tistream.codec.key_format import KeyFormat, parse
from tistream.codec.raw.keys import user_keys
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange, prefix_range
from tistream.model.arrays import Mask
from tistream.model.change import Op

_EVERY_KEY = KeyRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a reader wants, and the form in which keys and values are written."""

    form: KeyFormat = KeyFormat.HEX
    range: KeyRange = _EVERY_KEY  #: of user keys
    key_pattern: bytes | None = None
    value_pattern: bytes | None = None

    @property
    def is_everything(self) -> bool:
        """Whether all entries pass."""
        return self.range == _EVERY_KEY and self.key_pattern is None and self.value_pattern is None

    @property
    def weight(self) -> int:
        """Of its expressions."""
        given = (self.key_pattern, self.value_pattern)
        return sum(regexes.weight(each.decode("latin-1")) for each in given if each is not None)

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows (schema change.COMMITTED) that pass."""
        return rows if self.is_everything or not rows.num_rows else page_rows.only(rows, self.passed(rows))

    def passed(self, rows: pa.Table) -> Mask:
        """Which rows (schema change.COMMITTED) pass."""
        keys, passed = user_keys(rows["key"].combine_chunks()), np.ones(rows.num_rows, np.bool_)
        if self.range.start:
            passed &= _mask(pc.greater_equal(keys, pa.scalar(self.range.start, pa.binary())))
        if self.range.end:
            passed &= _mask(pc.less(keys, pa.scalar(self.range.end, pa.binary())))
        if self.key_pattern is not None:
            passed &= regexes.found(keys, self.key_pattern)
        if self.value_pattern is not None:
            passed &= regexes.found(rows["value"], self.value_pattern) | (rows["op"].to_numpy() == Op.DELETE)
        return passed


def parse_selection(
    form: KeyFormat,
    *,
    start_key: str | None = None,
    end_key: str | None = None,
    prefix: str | None = None,
    key_pattern: str | None = None,
    value_pattern: str | None = None,
) -> Selection:
    """From the parameters of a request; keys are in its key format. InvalidInput, FilterInvalid."""
    start, end, within = (
        b"" if text is None else parse(text, form, parameter=name)
        for name, text in (("start_key", start_key), ("end_key", end_key), ("prefix", prefix))
    )
    if end and end <= start:
        raise InvalidInput(
            f"The range is empty: end_key (0x{end.hex()}) is not above start_key (0x{start.hex()}).",
            start_key=start.hex(),
            end_key=end.hex(),
        )
    wanted = KeyRange(start, end)
    if within:
        both = wanted.intersect(prefix_range(within))
        if both is None:
            raise InvalidInput(f"No key with the prefix 0x{within.hex()} lies in the range.", prefix=within.hex())
        wanted = both
    return Selection(
        form=form,
        range=wanted,
        key_pattern=_pattern("key_pattern", key_pattern),
        value_pattern=_pattern("value_pattern", value_pattern),
    )


def kept_selection(keys: Mapping[str, str]) -> Selection:
    """The entries that the settings of a changefeed mean. InvalidInput, FilterInvalid."""
    named = {"prefix" if name == "key_prefix" else name: text for name, text in keys.items() if name != "key_format"}
    return parse_selection(KeyFormat(keys.get("key_format", KeyFormat.HEX)), **named)


def _pattern(parameter: str, text: str | None) -> bytes | None:
    if not text:
        return None
    if len(text) > TEXT_MAX:
        raise refused(parameter, text, TEXT_MAX, f"more than {TEXT_MAX} characters")
    try:
        pattern = text.encode("latin-1")
    except UnicodeEncodeError as e:
        cause = "a pattern is about bytes: a character above U+00FF is none"
        raise refused(parameter, text, e.start, cause, hint="; write its UTF-8 bytes, as in \\xe2\\x82\\xac.") from e
    if too_large := regexes.Price().refusal(text):
        raise refused(parameter, text, 0, too_large)
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except pa.ArrowInvalid as e:
        cause = str(e).removeprefix("Invalid regular expression: ").split("\n")[0]
        raise refused(parameter, text, 0, f"it is no regular expression (RE2): {cause}") from e
    return pattern


def _mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
