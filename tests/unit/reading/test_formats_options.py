"""Words of the query string to options, and names to formats."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

import pytest

from reading.formats import FORMAT_NAMES, FormatOptions, create_format, parse_options
from tistream.errors import InvalidInput


def test_options_have_the_names_of_a_sink_uri() -> None:
    options = parse_options(
        {
            "enable-tidb-extension": "true",
            "content-compatible": "FALSE",
            "delimiter": "|",
            "binary-encoding-method": "hex",
        },
        built_ms=7,
    )
    assert options == FormatOptions(enable_tidb_extension=True, delimiter="|", binary_encoding_method="hex", built_ms=7)


def test_nothing_asked_is_the_default() -> None:
    assert parse_options({}) == FormatOptions()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"enable-tidb-extention": "true"}, "Did you mean enable-tidb-extension"),
        ({"enable_tidb_extension": "true"}, "Did you mean enable-tidb-extension"),
        ({"built-ms": "1"}, "no option 'built-ms'"),
        ({"zzz": "true"}, "Known: .*cluster-name"),
        ({"content-compatible": "yes"}, "true or false"),
        ({"binary-encoding-method": "base32"}, "Did you mean base64"),
        ({"quote": "''"}, "one ASCII character"),
        ({"quote": "é"}, "one ASCII character"),
        ({"quote": ","}, "contains the quote"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "a\r"}, "delimiter"),
        ({"quote": "", "delimiter": "n"}, "Without a quote"),
        ({"quote": "", "delimiter": "||"}, "Without a quote"),
        ({"terminator": ""}, "terminator"),
    ],
)
def test_impossible_options_are_refused(query: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        parse_options(query)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_every_name_makes_the_format_of_that_name(name: str) -> None:
    fmt = create_format(name)
    assert fmt.name == name
    assert fmt.splits_updates is (name != "ndjson")
    assert create_format(name, FormatOptions(output_raw_change_event=True)).splits_updates is False
    assert fmt.terminator == (b"\r\n" if name == "csv" else b"\n")


@pytest.mark.parametrize(("name", "near"), [("canaljson", "canal-json"), ("Debezium", "debezium"), ("x", "ndjson")])
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InvalidInput, match=near):
        create_format(name)


TEXTS = [f for f in fields(FormatOptions) if f.metadata and not isinstance(f.default, bool)]


@pytest.mark.parametrize("option", TEXTS, ids=lambda f: f.name)
def test_every_text_is_bounded_because_a_body_repeats_it(option: Field[Any]) -> None:
    word = option.name.replace("_", "-")
    for text in ("x" * 300, "\N{SNOWMAN}" * 90):
        with pytest.raises(InvalidInput) as e:
            parse_options({word: text})
        assert e.value.facts["option"] == word
        assert "bytes" in e.value.message
        assert len(e.value.message) < 200, "what is refused is not repeated"
