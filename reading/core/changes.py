"""Decoded row changes on their way to a format encoder.

The reader cuts a page of the committed log into one TableChanges per table version; encoders turn each into one line
per row. Lines are put back into commit order by `order`. A row here is a *message*: an update that a protocol wants as
delete and insert is already split.
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
    """Changes of one table version, columnar. All arrays have the same length, one element a message.

    `after` and `before` have one column per `table.visible_columns`, in that order and by that name, in *storage form*
    (see `tistream.codec.row`). Where a message has no such image (after of a delete, before of an insert) its values
    are null and `kind` says so.
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
    split: npt.NDArray[np.bool_]  #: made out of an update

    def __len__(self) -> int:
        return len(self.kind)
