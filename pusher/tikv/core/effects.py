"""Effects of a TiKV feed's core, and findings that others may read."""

from __future__ import annotations

from dataclasses import dataclass

from pusher.tikv.core.requests import Deregister, Register
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Open the stream to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream:
    """Close the stream; later messages of it are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRegions:
    """Ask PD for the regions of a range; the answer goes to `regions_listed`."""

    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """This store reports another leader for the region; the other stores' feeds need to know."""

    region: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Not an effect but a finding: a piece whose resolved ts is stalled."""

    region_id: int
    range: KeyRange
    resolved_ts: int


Effect = OpenStream | CloseStream | AskRegions | Moved | Register | Deregister
