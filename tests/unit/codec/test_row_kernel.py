"""Compiled helpers that other tests reach only indirectly."""

from typing import Any

import numpy as np
import pytest

from tistream.codec import compiled
from tistream.codec.row import kernel


def test_a_function_that_cannot_be_cached_is_compiled_all_the_same() -> None:
    names: dict[str, Any] = {}
    exec("def double(x):\n    return x + x\n", names)  # its source is in no file
    double = compiled.kernel(names["double"])
    assert double(21) == 42


@pytest.mark.parametrize(
    "raw",
    [
        b"a",
        "é".encode(),
        "中".encode(),
        "\U0001f600".encode(),
        b"\xc2",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ],
)
def test_utf8_size_agrees_with_python(raw: bytes) -> None:
    data = np.frombuffer(raw + b"\x80\x80", np.uint8)
    try:
        raw.decode()
        assert kernel.utf8_size(data, 0, len(raw)) == len(raw)
    except UnicodeDecodeError:
        assert kernel.utf8_size(data, 0, len(raw)) == 0


@pytest.mark.parametrize(
    ("raw", "value"), [("00", 0), ("7f", 127), ("8001", 128), ("ac02", 300), ("ffffffffffffffffff01", 2**64 - 1)]
)
def test_uvarint(raw: str, value: int) -> None:
    data = np.frombuffer(bytes.fromhex(raw) + b"\x01", np.uint8)
    assert kernel.uvarint(data, 0, len(data)) == (value, len(raw) // 2)


@pytest.mark.parametrize("raw", ["", "80", "ffffffffffffffffff02", "ffffffffffffffffffff01"])
def test_uvarint_that_ends_or_overflows(raw: str) -> None:
    data = np.frombuffer(bytes.fromhex(raw), np.uint8)
    assert kernel.uvarint(data, 0, len(data))[1] < 0
