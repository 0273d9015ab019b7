"""What the core of a TiKV feed wants done outside, and what others may look into."""

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
    """Close it; nothing that still comes of it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRegions:
    """Ask PD for the regions of a range; `answered` takes the answer."""

    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """This store says that another one leads the region: news for that one."""

    region: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """No effect but a finding: a region's part whose resolved ts makes no progress."""

    region_id: int
    range: KeyRange
    resolved_ts: int


Effect = OpenStream | CloseStream | AskRegions | Moved | Register | Deregister
