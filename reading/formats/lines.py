"""Writes lines made of pieces: measures them, then writes each once at its place in the output.

A block is a number of lines that consist of the same pieces; a page is many blocks whose lines are interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.formats import kernels
from reading.formats.pieces import ByteMap, Piece, Slot, Texts, constant, large_binary
from tistream.errors import invariant


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Lines yet to be written."""

    at: npt.NDArray[np.int64]  #: place of each line among all lines
    pieces: Sequence[Piece]

    def __post_init__(self) -> None:
        for piece in self.pieces:
            fits = not isinstance(piece, Slot) or len(piece) == len(self.at)
            invariant(fits, "a slot has a value for each line", lines=len(self.at))


class BodyTooLarge(Exception):
    """The lines of a page are larger than it may be: they were measured and not written."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def write(
    blocks: Sequence[Block], *, end: bytes = b"", most: int | None = None
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """(offsets, bytes) of the lines of all blocks, each followed by `end`. The blocks use each place 0, 1, 2, ...
    once. BodyTooLarge above `most` bytes."""
    ready = [_Ready.of(block, end) for block in blocks]
    offsets = np.zeros(sum(len(block.at) for block in blocks) + 1, np.uint64)
    for block, layout in zip(blocks, ready, strict=True):
        offsets[block.at + 1] = layout.measured()
    np.cumsum(offsets, out=offsets)
    if most is not None and int(offsets[-1]) > most:
        raise BodyTooLarge(int(offsets[-1]))
    out = np.empty(int(offsets[-1]), np.uint8)
    for block, layout in zip(blocks, ready, strict=True):
        layout.write(offsets[block.at], out)
    return offsets, out


def written(blocks: Sequence[Block]) -> pa.LargeBinaryArray:
    """The lines as an array."""
    return large_binary(*write(blocks))


def as_array(slot: Slot) -> pa.LargeBinaryArray:
    """The slot's text in each row."""
    return written([Block(at=np.arange(len(slot)), pieces=[slot])])


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """The pieces of a block in the form of the kernels, see `kernels.measure`."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.uint64]
    state: npt.NDArray[np.uint8]
    style: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint8]
    constants: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, block: Block, end: bytes) -> _Ready:
        slots, constants = _folded([*block.pieces, end])
        rows = len(block.at)
        ends = np.empty((len(slots), rows + 1), np.uint64)
        state = np.full((len(slots), rows), kernels.PLAIN, np.uint8)
        chunks = [np.empty(0, np.uint8)]
        size = 0
        for n, slot in enumerate(slots):
            if isinstance(slot.values, Texts):
                first, last = int(slot.values.offsets[0]), int(slot.values.offsets[-1])
                np.add(slot.values.offsets, size - first, out=ends[n], casting="unsafe")
                chunks.append(slot.values.data[first:last])
                size += last - first
            else:
                negative = slot.values < 0
                state[n] = np.where(negative, kernels.NEGATIVE, kernels.NUMBER)
                ends[n, :rows] = slot.values.astype(np.uint64)
                np.negative(ends[n, :rows], out=ends[n, :rows], where=negative)  # modulo 2**64: the magnitude
            if slot.valid is not None:
                state[n, ~slot.valid] = kernels.NULL
            if slot.present is not None:
                state[n, ~slot.present] = kernels.ABSENT
        maps = list(dict.fromkeys(slot.style for slot in slots if slot.style is not None)) or [_NO_MAP]
        return cls(
            data=np.concatenate(chunks),
            ends=ends,
            state=state,
            style=np.array([-1 if slot.style is None else maps.index(slot.style) for slot in slots], np.int64),
            sizes=np.stack([one.sizes for one in maps]),
            entries=np.stack([one.entries for one in maps]),
            constants=np.frombuffer(b"".join(constants), np.uint8),
            spans=np.cumsum([0, *map(len, constants)], dtype=np.uint64),
        )

    def measured(self) -> npt.NDArray[np.uint64]:
        lengths = np.empty(self.state.shape[1], np.uint64)
        kernels.measure(self.data, self.ends, self.state, self.style, self.sizes, self.spans, lengths)
        return lengths

    def write(self, starts: npt.NDArray[np.uint64], out: npt.NDArray[np.uint8]) -> None:
        kernels.write(
            self.data,
            self.ends,
            self.state,
            self.style,
            self.sizes,
            self.entries,
            self.constants,
            self.spans,
            starts,
            out,
        )


_NO_MAP = ByteMap(sizes=np.ones(256, np.uint8), entries=np.zeros((256, kernels.ENTRY_MAX), np.uint8))


def _folded(pieces: Sequence[Piece]) -> tuple[list[Slot], list[bytes]]:
    """(slots, constants of `kernels.measure`): constants before a slot are merged into its own."""
    slots: list[Slot] = []
    constants: list[bytes] = []
    lead = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            lead += piece
            continue
        if lead and piece.present is not None:
            slots.append(constant(lead, len(piece)))
            constants += [lead, b"", b""]
            lead = b""
        slots.append(piece)
        constants += [lead + piece.before, lead + piece.instead, piece.after]
        lead = b""
    return slots, [*constants, lead]
