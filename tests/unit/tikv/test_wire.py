"""The compiled messages are those of wire.proto."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grpc_tools import protoc

from tistream.codec.protobuf import message, parse, uint
from tistream.errors import CorruptObject
from tistream.tikv.core import wire

ROOT = Path(__file__).parents[3]
WIRE = "tistream/tikv/core/wire"


def declared(stubs: Path) -> list[str]:
    """The classes and fields; signatures differ between versions of protoc."""
    return re.findall(r"^(?:class |    \w+: ).*", stubs.read_text("utf-8"), re.MULTILINE)


def test_compiling_again_changes_nothing(tmp_path: Path) -> None:
    descriptors = tmp_path / "wire.binpb"
    options = [f"-I{ROOT}", f"--descriptor_set_out={descriptors}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["", *options, f"{ROOT}/{WIRE}.proto"]) == 0
    assert descriptors.read_bytes() == (ROOT / WIRE).with_suffix(".binpb").read_bytes()
    assert declared(tmp_path / f"{WIRE}_pb2.pyi") == declared((ROOT / WIRE).with_suffix(".pyi"))


def test_an_unknown_field_is_skipped_and_a_known_one_of_another_wire_type_is_damage() -> None:
    assert parse(wire.GetRegionResponse, uint(99, 1) + message(2, uint(1, 7))).region.id == 7
    for damaged in (uint(2, 1), message(2, message(1, b"7")), message(2, message(5, message(2, b"x"))), b"\x12\x05"):
        with pytest.raises(CorruptObject):
            parse(wire.GetRegionResponse, damaged)
