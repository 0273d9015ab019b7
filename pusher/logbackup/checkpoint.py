"""Global checkpoint of a log backup: its only watermark.

    v1/global_checkpoint/{store}.ts, central_global.ts     u64 little endian, one in each file

TiDB advances it when every store has written everything up to it; the stores then note it in the directory. All files
with a commit_ts at or below it are present; nothing above it is guaranteed.

- The lowest file counts. Each value was true when written, so the lowest is the safe one; the file of a store that is
  permanently gone holds it back and is named;
- a directory without such a file has no watermark;
- a checkpoint is *stalled* when a store has flushed `FLUSHES_AHEAD_MAX` times since: normally it follows every flush.
  The report (file, value, stores that advanced) is for people; the rules above do not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pusher.logbackup.core.metadata import CHECKPOINT_PREFIX, Flush
from tistream.errors import CorruptObject
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import physical_ms, to_text

FLUSHES_AHEAD_MAX = 3  #: flushes of one store beyond the checkpoint before it counts as stalled
_SUFFIX = ".ts"
_BYTES = 8
_PHYSICAL_MS_MAX = 7_258_118_400_000  # the year 2200: later values are not timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The global checkpoint, and the file that determines it."""

    ts: int
    object: str  #: the file with the lowest value; the first of several equal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Flushes beyond the checkpoint."""

    checkpoint: Checkpoint
    flushes: Mapping[int, int]  #: store -> number of flushes
    newest_ts: int  #: of these flushes; 0 = none

    @property
    def is_stalled(self) -> bool:
        return max(self.flushes.values(), default=0) >= FLUSHES_AHEAD_MAX

    def __str__(self) -> str:
        """One line for people; empty when nothing lies beyond the checkpoint."""
        if not self.flushes:
            return ""
        stores = ", ".join(f"store {s}: {n}" for s, n in sorted(self.flushes.items()))
        return (
            f"{self.checkpoint.object} holds the log at {self.checkpoint.ts}, since {to_text(self.checkpoint.ts)}; "
            f"what was flushed after it, up to {to_text(self.newest_ts)}, is not promised ({stores} flushes)"
        )


def read_checkpoint(store: ObjectStore) -> Checkpoint | None:
    """The lowest global checkpoint in the directory; None when there is none. CorruptObject for an invalid file."""
    lowest: Checkpoint | None = None
    for info in store.list(CHECKPOINT_PREFIX):
        if not info.key.endswith(_SUFFIX):
            continue
        data = store.get(info.key)
        checkpoint = Checkpoint(ts=int.from_bytes(data[:_BYTES], "little"), object=info.key)
        if len(data) != _BYTES or not 0 < physical_ms(checkpoint.ts) < _PHYSICAL_MS_MAX:
            raise CorruptObject(
                "a global checkpoint of the log backup is not a timestamp", object=info.key, offset=0, cause=data.hex()
            )
        if lowest is None or checkpoint.ts < lowest.ts:
            lowest = checkpoint
    return lowest


def ahead_of(checkpoint: Checkpoint, flushes: Iterable[Flush]) -> Ahead:
    beyond = [f for f in flushes if f.newest_ts > checkpoint.ts]
    return Ahead(
        checkpoint=checkpoint,
        flushes=Counter(f.store_id for f in beyond),
        newest_ts=max((f.newest_ts for f in beyond), default=0),
    )
