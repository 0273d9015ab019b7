"""Keys of one keyspace, without the four-byte prefix that they have on the wire.

    x{keyspace id, 3 bytes} t...   on the wire, in regions, rows and reads      t...   everywhere else

Everything sent to PD or a store passes `outer_*`, everything received `inner_*`; nothing in between knows of keyspaces.
A region's part outside the keyspace is cut off. A row without the prefix is damage, because none was requested.

Pure. A cluster without keyspaces is `WHOLE`, which changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.binary import flat, kept
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange, prefix_range
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_key, plain_range, region_form


@dataclass(frozen=True, slots=True)
class KeyspaceKeys:
    """The keys of a keyspace of TiDB; `id` None: of a cluster without keyspaces."""

    id: int | None = None

    @property
    def prefix(self) -> bytes:
        """The prefix of each key on the wire."""
        return b"" if self.id is None else keyspace_prefix(KeyMode.TXN, self.id)

    def outer_range(self, inner: KeyRange) -> KeyRange:
        """A range as sent on the wire."""
        if self.id is None:
            return inner
        end = self.prefix + inner.end if inner.end else prefix_range(self.prefix).end
        return KeyRange(self.prefix + inner.start, end)

    def outer_boundary(self, inner: bytes, *, is_end: bool) -> bytes:
        """A boundary in region form, as PD knows it."""
        if self.id is None:
            return inner
        plain = plain_key(inner)
        outer = self.outer_range(KeyRange(b"", plain) if is_end else KeyRange(plain))
        return region_form(outer.end if is_end else outer.start)

    def inner_region(self, region: Region) -> Region | None:
        """The part of a region within the keyspace; None when there is none."""
        if self.id is None:
            return region
        region_range = plain_range(region)
        part = region_range.intersect(prefix_range(self.prefix)) if region_range is not None else None
        if part is None:
            return None
        size = len(self.prefix)
        end = b"" if part.end == prefix_range(self.prefix).end else part.end[size:]
        return replace(region, start=region_form(part.start[size:]), end=region_form(end))

    def inner_key(self, key: bytes) -> bytes:
        """The key without the prefix. CorruptObject when it is of another keyspace."""
        if not key.startswith(self.prefix):
            raise CorruptObject("a key of another keyspace was received", key=key, prefix=self.prefix)
        return key[len(self.prefix) :]

    def inner_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows (schema change.ROWS) without key prefixes. CorruptObject when one is of another keyspace."""
        if self.id is None or not rows.num_rows:
            return rows
        keys = rows.column("key")
        foreign = pc.invert(pc.starts_with(keys, self.prefix)).to_numpy(zero_copy_only=False)
        if foreign.any():
            self.inner_key(keys[int(np.argmax(foreign))].as_py())
        at = rows.schema.get_field_index("key")
        return rows.set_column(at, rows.schema.field(at), _cut(keys, len(self.prefix)))


def _cut(keys: pa.BinaryArray, size: int) -> pa.BinaryArray:
    """Each key without its first `size` bytes, which it has. pyarrow 26's binary_slice fails on slices."""
    bounds, data = flat(keys)
    keep = np.ones(len(data), np.bool_)
    keep[(bounds[:-1, None] + np.arange(size)).ravel()] = False
    return kept(bounds, data, keep)


WHOLE = KeyspaceKeys()  #: a cluster without keyspaces
