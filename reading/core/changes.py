"""Decoded row changes of one table version, columnar: the input of format encoders.

A page is one TableChanges per table version; encoders render one line per row, and `order` puts the lines back into
commit order. A row here is a *message*: an update that a protocol wants as delete and insert is already split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.model import Table

INSERT, UPDATE, DELETE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table version, columnar. All arrays have the same length, one element per message.

    `after` and `before` have one column per `table.visible_columns`, in that order and by that name, in *storage form*
    (see `tistream.codec.row`). Values are null where a message has no such image (after of a
    delete, before of an insert).
    """

    table: Table
    kind: npt.NDArray[np.uint8]  #: INSERT, UPDATE or DELETE
    order: npt.NDArray[np.int64]  #: place in the page
    physical_id: npt.NDArray[np.int64]
    start_ts: npt.NDArray[np.uint64]
    commit_ts: npt.NDArray[np.uint64]
    key: pa.BinaryArray  #: record keys
    after: pa.RecordBatch
    before: pa.RecordBatch
    split: npt.NDArray[np.bool_]  #: half of a split update

    def __len__(self) -> int:
        return len(self.kind)
