"""Writes the rows of an accepted file that lie at or below a task's `durable_ts`: an object of the committed log.

The object is a committed file like those of a flush, named after the task, its epoch and the state checkpoint that it
appears with. It becomes visible with that checkpoint (`tistream.catalog.work.acceptance.amend`), or is collected as an
orphan. Nothing has changed when this raises.
"""

from __future__ import annotations

import secrets

import pyarrow as pa

from sorter.worker.stored_core import RowsOutOfReach
from tistream.catalog.log.segments import segment_in
from tistream.catalog.work.acceptance import TaskAmendment
from tistream.codec.committed_file import CommittedFileWriter
from tistream.errors import StoreError
from tistream.model.contradiction import BatchFile
from tistream.objectstore.layout import CommittedKey, SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics

_ROWS_OUT, _BYTES_OUT = metrics.ROWS.labels("sorter", "out"), metrics.BYTES.labels("sorter", "out")


def write_amendment(
    store: ObjectStore, at: SnapshotKey, file: BatchFile, durable_ts: int, rows: pa.Table
) -> TaskAmendment:
    """Put the rows (change.COMMITTED, in the order of the log), if there are any. `at` is an unused key of the task's
    checkpoints. RowsOutOfReach when they cannot be put: repeat it later, with another key."""
    if not rows.num_rows:
        return TaskAmendment(file=file, seen_durable_ts=durable_ts, objects={}, segments=())
    named = CommittedKey(tenant=at.tenant, sorter=f"task-{at.task_id}-amended", incarnation=at.epoch, seq=at.n)
    writer, key = CommittedFileWriter(named, secrets.token_hex(16)), str(named)
    writer.add(at.task_id, rows)
    data = writer.finish()
    try:
        store.put(key, data)
    except StoreError as e:
        raise RowsOutOfReach("Accepted rows cannot be written yet.", object=key, cause=str(e)) from e
    _ROWS_OUT.inc(rows.num_rows)
    _BYTES_OUT.inc(len(data))
    segments = [segment_in(key, s) for s in writer.segments[at.task_id]]
    return TaskAmendment(file=file, seen_durable_ts=durable_ts, objects={key: len(data)}, segments=segments)
