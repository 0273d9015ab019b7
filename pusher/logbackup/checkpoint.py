"""The global checkpoint of a log backup: the one timestamp that says what is complete.

    v1/global_checkpoint/{store}.ts, central_global.ts     u64 little endian, one in each file

TiDB moves it on when every store has written everything up to it; stores then note it in the directory. Everything
with a commit_ts at or below it is in files that are there; nothing is promised about anything above. What this module
decides:

- the lowest of the files counts. Each of them was true when it was written, so the lowest is the careful choice;
  the file of a store that is gone for good holds it, and is named;
- a directory without such a file promises nothing;
- a checkpoint *stands still* when some store has flushed `FLUSHES_AHEAD_MAX` times since: it normally follows every
  flush. What it then says (file, value, which stores went on) is for people; the rule above does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pusher.logbackup.core.metadata import CHECKPOINT_PREFIX, Flush
from tistream.errors import CorruptObject
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import physical_ms, to_text

FLUSHES_AHEAD_MAX = 3  #: flushes of one store beyond the checkpoint before it is said to stand still
_SUFFIX = ".ts"
_BYTES = 8
_PHYSICAL_MS_MAX = 7_258_118_400_000  # the year 2200: what claims to be later is no timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The global checkpoint, and the file that holds it."""

    ts: int
    object: str  #: the lowest one's; of several equal ones the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What stores have flushed beyond the checkpoint."""

    checkpoint: Checkpoint
    flushes: Mapping[int, int]  #: store -> its flushes beyond the checkpoint
    newest_ts: int  #: of these flushes; 0 = there is none

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
    """The lowest global checkpoint noted in the directory; None when there is none. CorruptObject for a file that is
    none."""
    lowest: Checkpoint | None = None
    for info in store.list(CHECKPOINT_PREFIX):
        if not info.key.endswith(_SUFFIX):
            continue
        data = store.get(info.key)
        found = Checkpoint(ts=int.from_bytes(data[:_BYTES], "little"), object=info.key)
        if len(data) != _BYTES or not 0 < physical_ms(found.ts) < _PHYSICAL_MS_MAX:
            raise CorruptObject(
                "a global checkpoint of the log backup is no timestamp", object=info.key, offset=0, cause=data.hex()
            )
        if lowest is None or found.ts < lowest.ts:
            lowest = found
    return lowest


def ahead_of(checkpoint: Checkpoint, flushes: Iterable[Flush]) -> Ahead:
    """What of these flushes lies beyond the checkpoint."""
    beyond = [f for f in flushes if f.newest_ts > checkpoint.ts]
    return Ahead(
        checkpoint=checkpoint,
        flushes=Counter(f.store_id for f in beyond),
        newest_ts=max((f.newest_ts for f in beyond), default=0),
    )
