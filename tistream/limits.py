"""Limits that several services or packages share, with their unit in the name. A limit of one module stands there."""

from __future__ import annotations

INT_MAX = (1 << 63) - 1  # the largest number of every supported database
BATCH_FILE_BYTES_TARGET = 8 << 20  # a pusher cuts a file early here
COMMITTED_FILE_BYTES_TARGET = 8 << 20
SEGMENT_OWN_BYTES_MIN = 256 << 10  # a table with more than this in one flush gets a segment of its own
SEGMENT_SHARED_BYTES_TARGET = 512 << 10  # a segment of several tables ends here: a reader of one fetches all of it
SEGMENT_BYTES_TARGET = 64 << 20  # a segment of a committed file ends here, unpacked; a larger flush gets several
SEED_SEGMENT_BYTES_TARGET = 4 << 20  # a segment of a seed ends here, unpacked: a reader holds some of them
COMPACTED_FILE_BYTES_TARGET = 16 << 20  # stored; a reader in commit order holds a stretch of the log of about this size
COMPACTED_RAW_BYTES_MAX = 256 << 20  # of the inputs of one compacted file, unpacked; a worker holds them several times
COMPACTED_ROWS_MAX = 4 << 20  # and their rows
COMPACTED_GROUP_BYTES_TARGET = 8 << 20  # a row group of one table ends here, unpacked
FILE_BYTES_MAX = 2 << 30  # a segment file larger than this is refused
SEGMENT_BYTES_MAX = 1 << 30  # decompressed bytes of one segment; larger is refused before it is unpacked
FOOTER_BYTES_MAX = 64 << 20
HEAD_BYTES_MAX = 1 << 20

# What a tenant's pushers may write. A process takes no more memory for one object than these allow, and reads objects
# above BATCH_FILE_USUAL_BYTES one at a time.
BATCH_ROWS_BYTES_MAX = 32 << 20  # the rows of a batch file, unpacked; pushers cut at BATCH_FILE_BYTES_TARGET
ROW_BYTES_MAX = 256 << 20  # a file of one row may be as large as TiDB's largest row and the value before it
BATCH_REGIONS_BYTES_MAX = 64 << 20  # the watermark rows of a batch file, unpacked
BATCH_REGIONS_MAX = 500_000  # and their number: regions of one store
BATCH_FOOTER_BYTES_MAX = 64 << 10  # with the head
BATCH_FILE_USUAL_BYTES = BATCH_ROWS_BYTES_MAX + (8 << 20)  # stored
BATCH_FILE_BYTES_MAX = ROW_BYTES_MAX + BATCH_REGIONS_BYTES_MAX + (1 << 20)  # stored
SEED_SEGMENT_BYTES_MAX = 32 << 20  # of a seed or base, unpacked; one row may be larger
MANIFEST_BYTES_MAX = 64 << 20  # of a seed, stored
MANIFEST_RAW_BYTES_MAX = 128 << 20  # unpacked
SEED_SEGMENTS_MAX = 500_000  # of one seed
SNAPSHOT_BYTES_MAX = 64 << 20  # of a schema snapshot, stored: about a million tables
SNAPSHOT_RAW_BYTES_MAX = 2 << 30  # unpacked; it is never unpacked as a whole
SNAPSHOT_SMALL_BYTES = 2 << 20  # unpacked: parsed at once, for at most 50 times as much memory
SNAPSHOT_TABLES_MAX = 1_000_000
SNAPSHOT_PARTITIONS_MAX = 4_000_000  # of all tables
SNAPSHOTS_READ_MAX = 32  # of a waiting tenant: the newest ones
DEFINITION_BYTES_MAX = 16 << 20  # JSON of a table's definition: TiKV's values have 6 MiB by default
JOB_BYTES_MAX = 128 << 20  # JSON of a DDL job or definition in the log: TiKV's largest value
JOB_VALUES_MAX = 4_000_000  # in it; each takes about 100 bytes
SCHEMA_WORKER_BYTES_MAX = 1 << 30  # memory of the process that parses one schema snapshot
SCHEMA_WORKER_S_MAX = 300  # and its time
CONFINED_MAX = 2  # such processes that a process has at once

UPLOADS_IN_FLIGHT_MAX = 4
UPLOAD_QUEUE_BYTES_MAX = 256 << 20  # encoded batch files waiting; a pusher with more drops its stream
FRONTIER_CACHE_MS = 200  # a pusher reuses a frontier up to this age
INCARNATION_CHECK_MS = 2_000  # how often a pusher checks that it is its store's newest incarnation
PREFETCH_FILES_MAX = 8
FEED_QUEUE_BATCHES_MAX = 16
FEED_QUEUE_BYTES_MAX = 16 << 20  # of one subscription, sent and not consumed; one batch of any size is allowed
INBOX_BYTES_MAX = 32 << 20  # batches waiting for a task's core

LEASE_MS = 10_000  # a worker without a heartbeat for this long may be replaced
LEADER_LEASE_MS = 5_000  # shorter: a leader may die just before it replaces a worker
HEARTBEAT_MS = 2_000
RATE_WINDOW_S = 10.0  # of the averages that heartbeats report
WAITING_BYTES_MAX = 64 << 30  # replaced objects that only wait for an export: more begin one (a default)
CLOCK_SKEW_MAX_MS = 60_000  # timestamps of pushers this far ahead of the catalog's clock count; later ones wait
LANE_LEASE_MS = 6_000  # how long the owner of a changefeed's lane may write after it last read its lanes
JOB_LEASE_MS = 30_000  # a maintenance job whose executor has not renewed its lease for this long may be taken over
JOB_RENEW_MS = 5_000
BUILD_LEASE_MS = 120_000  # unpublished files of a merge or base are kept this long after the driver's last sign
BUILD_RENEW_MS = 20_000
READ_LEASE_TTL_MS = 900_000  # listed objects are kept this long after the last renewal
FILE_URL_MS = 900_000  # the files of a listing can be fetched this long
FILES_LISTED_MAX = 50_000
ROWS_FILES_BYTES_MAX = 4 << 30  # table rows as Parquet files with ranges, on an API server's disk
ROWS_FILES_MAX = 128  # each is an open file
LEFT_OUT_BYTES_MAX = 4096  # of the header that lists columns without values: clients refuse long heads
READ_MEMORY_BYTES = 1 << 30  # of reads of the log in one process, unless `server.read_memory_mib` says another number
READ_WAIT_S_MAX = 10.0  # of a read for memory
COMMIT_BYTES_MAX = 64 << 20  # of a commit_ts that is delivered in one page: keys and values, or the body, estimated
KEY_CHARS_MAX = 20_000  # of a key as text in a request
TIME_CHARS_MAX = 64  # of a moment in a request
CURSOR_CHARS_MAX = 16384  # TiDB's and TiKV's longest keys fit in
PULL_WAIT_MS_MAX = 30_000
PATTERNS_S_MAX = 4.0  # processor time of the regular expressions of one page
PULL_ROWS_DEFAULT = 10_000
PULL_ROWS_MAX = 200_000
KEY_CACHE_MS = 5_000  # a key revoked by another process is accepted at most this long
LOGIN_CODE_MS = 600_000
SESSION_MS = 12 * 3_600_000
REQUEST_HEAD_BYTES_MAX = 64 << 10
REQUEST_BODY_BYTES_MAX = 1 << 20  # JSON is parsed on the event loop: a million small values would stop it for seconds
PROBLEM_TEXT_CHARS_MAX = 1000  # of an error's message, which may repeat what was sent
PROBLEM_FACT_CHARS_MAX = 16384  # of each of its facts: the longest key fits in
KEPT_BODY_BYTES_MAX = 1 << 20  # of a request with an Idempotency-Key, and of its answer
STREAM_ROWS_DEFAULT = 5_000  # between two watermarks of a stream
SPLITS_MAX = 1000  # parts of one plan of a long pull
CHANGEFEEDS_MAX = 1000  # of one tenant
CONSUMERS_MAX = 1000  # of one tenant
STORES_MAX = 4000  # of one tenant: each is listed and followed
CONSUMER_PARTITIONS_MAX = 64  # of one consumer
CONSUMER_MEMBERS_MAX = 128  # that read one consumer at the same time
CONSUMER_LEASE_S_DEFAULT = 30  # between two pulls of a member, after which its partitions go to others
CONSUMER_LEASE_S_MAX = 3600
RAW_RETENTION_HOURS = 24  # what a RawKV tenant keeps at most by default: API V2's lifetime of deletions
CHANGEFEED_IDLE_HOURS_DEFAULT = 24  # a changefeed whose checkpoint does not move for so long no longer holds the log
CONSUMER_IDLE_HOURS_DEFAULT = 720  # a consumer that is not read for so long no longer holds the log

assert HEARTBEAT_MS * 3 < LEASE_MS
assert JOB_RENEW_MS * 3 < JOB_LEASE_MS
assert BUILD_RENEW_MS * 3 < BUILD_LEASE_MS
assert 2 * BATCH_FILE_BYTES_TARGET <= BATCH_ROWS_BYTES_MAX < ROW_BYTES_MAX < SEGMENT_BYTES_MAX
assert SEGMENT_OWN_BYTES_MIN <= SEGMENT_SHARED_BYTES_TARGET < SEGMENT_BYTES_TARGET < SEGMENT_BYTES_MAX <= FILE_BYTES_MAX
