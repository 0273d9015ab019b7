"""Reads the rows that a cluster's tables had at the tenant's beginning, and pushes them as its seed, beside the stream.

    schema snapshot at S -> record ranges of its tables -> KvScan at S, as slowly as told -> seed files -> manifest

Relations:

- history at S is held under a name of its own until the manifest is there, for no longer than the agreed cap;
- pieces are cut by the rows alone, never by where a page or region ended: begun again after an interruption, the same
  files come out, and what was written before is met again unchanged;
- the commit_ts of every row is S: a snapshot read does not tell it;
- a seed that fails stops nobody: the stream goes on, and `problem` says what happened.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from schemas.snapshot import parse_pushed
from tistream.clock import Clock
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import record_range
from tistream.errors import TiStreamError
from tistream.objectstore.protocol import ObjectStore
from tistream.pusher.control import SeedControl, retrying
from tistream.pusher.seed_push import push_seed
from tistream.pusher.tikv.history import Hold
from tistream.pusher.tikv.kv_scan import KvReader

log = structlog.get_logger(__name__)

_PIECE_BYTES = 4 << 20
_RENEW_S = 60.0


class SeedScan:
    """The thread that seeds a tenant. Start it, `stop` it; the rest may be read from any thread."""

    def __init__(
        self,
        reader: KvReader,
        control: SeedControl,
        store: ObjectStore,
        schema: bytes,
        hold: Hold,
        *,
        stop: threading.Event,
        clock: Clock,
        rand: random.Random,
    ) -> None:
        """`schema`: the snapshot with which the tenant began, as JSON. `stop` is the reader's as well."""
        pushed = parse_pushed(orjson.loads(schema))
        tables = pushed.snapshot.tables.values()
        self._ids = sorted(i for table in tables if table.kind == "table" for i in table.physical_ids)
        self._ts = pushed.snapshot.ts
        self._reader, self._control, self._store, self._hold = reader, control, store, hold
        self._stop, self._clock, self._rand = stop, clock, rand
        self._renew_at = 0.0
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="seed", daemon=True)
        self.rows = 0  #: read so far
        self.tables_left = len(self._ids)
        self.done = False

    @property
    def problem(self) -> str:
        """What it waits for, or what ended it."""
        text = self._fault or self._reader.problem
        return f"seed: {text}" if text and not self.done else ""

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for its end; set `stop` before."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self.done = (
                retrying(self._once, stop=self._stop, clock=self._clock, rand=self._rand, notice=self._notice) or False
            )
        except TiStreamError as e:
            log.error("the rows at the beginning could not be seeded", ts=self._ts, error=str(e))
            self._fault = str(e)
        except Exception as e:
            log.exception("the rows at the beginning could not be seeded", ts=self._ts)
            self._fault = repr(e)
        finally:
            self._reader.close()

    def _once(self) -> bool:
        if not self._control.has_seed(self._ts, 0):
            self.rows, self.tables_left, self._renew_at = 0, len(self._ids), 0.0
            push_seed(self._control, self._store, self._ts, pieces(self._read(), _PIECE_BYTES))
        self._hold.release()
        return True

    def _notice(self, error: TiStreamError) -> None:
        self._fault = str(error)

    def _read(self) -> Iterator[pa.Table]:
        for table_id in self._ids:
            self._renew()
            for page in self._reader.read(record_range(table_id), self._ts):
                self._renew()
                self._fault = ""
                self.rows += len(page.keys)
                times = pa.array(np.full(len(page.keys), self._ts, np.uint64))
                yield pa.Table.from_arrays(
                    [pa.array(page.keys, pa.binary()), times, times, pa.array(page.values, pa.binary())], schema=SEED
                )
            self.tables_left -= 1

    def _renew(self) -> None:
        if (now := self._clock.monotonic()) >= self._renew_at:
            self._renew_at = now + _RENEW_S
            self._hold.renew(self._ts)
            if not self._hold.covers(self._ts):
                raise TiStreamError(self._hold.problem or "history is not held", ts=self._ts)


def pieces(parts: Iterable[pa.Table], piece_bytes: int) -> Iterator[pa.Table]:
    """The same rows in pieces of about so many bytes of keys and values, cut by the rows alone."""
    kept: list[pa.Table] = []
    size = 0
    for part in parts:
        sizes = np.cumsum(_bytes(part))
        start = 0
        while start < part.num_rows:
            before = int(sizes[start - 1]) if start else 0
            end = int(np.searchsorted(sizes, before + piece_bytes - size, side="left")) + 1
            end = min(end, part.num_rows)
            kept.append(part.slice(start, end - start))
            size += int(sizes[end - 1]) - before
            start = end
            if size >= piece_bytes:
                yield pa.concat_tables(kept)
                kept, size = [], 0
    if kept:
        yield pa.concat_tables(kept)


def _bytes(part: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = [np.asarray(pc.binary_length(part[name])).astype(np.int64) for name in ("key", "value")]
    return lengths[0] + lengths[1]
