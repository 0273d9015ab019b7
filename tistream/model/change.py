"""Arrow schemas of change rows, watermark rows and committed rows.

    pusher  --ROWS + REGIONS-->  dispatcher  --ROWS + REGIONS-->  sorter  --COMMITTED-->  everyone

Invariants:

- a batch file's rows are clustered by subscription; the REGIONS row of the subscription names its slice (`row_offset`,
  `row_count`); within a subscription the order is the order of arrival;
- `op` and `kind` are small integers, never text;
- `value` is null where the upstream sent none (a COMMIT, a ROLLBACK, a DELETE); an empty value is not null;
- `old_value` is null exactly where the key did not exist before, but for rows with FLAG_OLD_VALUE_UNKNOWN;
- keys are plain user keys. Those of a raw or txn tenant begin with their mode and keyspace (`tistream.codec.raw.keys`);
- a RAW row has the causal timestamp of the write in `commit_ts`, and FLAG_OLD_VALUE_UNKNOWN. `start_ts` equals it,
  except with FLAG_SCANNED. An opening scan of RawKV sends the newest version of each key only: `start_ts` is then the
  checkpoint of the subscription, and versions of the key between `start_ts` and `commit_ts` may be missing.
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa


class RowKind(IntEnum):
    """The kind of a row in the upstream's change feed."""

    PREWRITE = 1
    COMMIT = 2
    ROLLBACK = 3
    COMMITTED = 4  #: self-contained: value, old value and both timestamps in one row
    RAW = 5  #: a RawKV write: complete, without a transaction


class Op(IntEnum):
    """What happened to the key."""

    NONE = 0  #: rollbacks
    PUT = 1
    DELETE = 2


#: field metadata of a decoded page, by which readers match columns of different pages
OWN_COLUMN = b"tistream.own"  #: the name of a column that TiStream adds, unless the table has one of that name
COLUMN_ID = b"tistream.column_id"  #: TiDB's id of the table's column
TABLE_IDS = b"tistream.table_ids"  #: of the schema: the table ids for which these column ids hold, joined by commas
NEWER = b"tistream.newer"  #: of the schema, with `schema_ts`: columns that rows above it have beside them, a JSON list

FLAG_NOT_A_CHANGE = 1  #: kept for reads AS OF a timestamp only, never delivered as a change
FLAG_OLD_VALUE_UNKNOWN = 2  #: the upstream does not send old values: `old_value` is null and means nothing
FLAG_SCANNED = 4  #: of a RawKV row from an opening scan: older versions above `start_ts` may be missing


def _schema(*fields: tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])


#: rows of a batch file and of the feed
ROWS = _schema(
    ("kind", pa.uint8(), False),  # RowKind
    ("op", pa.uint8(), False),  # Op
    ("key", pa.binary(), False),
    ("start_ts", pa.uint64(), False),
    ("commit_ts", pa.uint64(), False),  # 0 for prewrites and rollbacks
    ("generation", pa.uint64(), False),  # of a pipelined transaction's flush; else 0
    ("value", pa.binary(), True),
    ("old_value", pa.binary(), True),
    ("expire_ts", pa.uint64(), False),  # RawKV: Unix seconds; 0 = never
    ("flags", pa.uint8(), False),  # FLAG_*
)

#: one watermark row per subscription open at any time since the store's previous file (a closing row for an
#: ended one)
REGIONS = _schema(
    ("region_id", pa.uint64(), False),
    ("version", pa.uint64(), False),
    ("start_key", pa.binary(), False),
    ("end_key", pa.binary(), False),  # empty = plus infinity
    ("subscription_open_ts", pa.uint64(), False),  # TSO taken before registering
    ("subscription_ready_ts", pa.uint64(), False),  # TSO after INITIALIZED; 0 until then: the row advances no watermark
    ("checkpoint_ts", pa.uint64(), False),  # fixed for the subscription
    ("resolved_ts", pa.uint64(), False),  # the largest sent in this subscription; 0 = none yet
    ("row_offset", pa.uint64(), False),  # of the subscription's rows in the rows segment (or in the feed batch)
    ("row_count", pa.uint64(), False),
)

#: rows of the committed log; in a table, in (commit_ts, start_ts, key) order
COMMITTED = _schema(
    ("table_id", pa.int64(), False),  # physical table id; 0 for keys of no table
    ("op", pa.uint8(), False),
    ("key", pa.binary(), False),
    ("start_ts", pa.uint64(), False),
    ("commit_ts", pa.uint64(), False),
    ("value", pa.binary(), True),
    ("old_value", pa.binary(), True),
    ("expire_ts", pa.uint64(), False),
    ("flags", pa.uint8(), False),
)
