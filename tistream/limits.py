"""Limits that several services or packages share, with their unit in the name. A limit of one module stands there."""

from __future__ import annotations

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
CLOCK_SKEW_MAX_MS = 60_000  # timestamps of pushers this far ahead of the catalog's clock count; later ones wait
JOB_LEASE_MS = 30_000  # a maintenance job whose executor has not renewed its lease for this long may be taken over
JOB_RENEW_MS = 5_000
READ_LEASE_TTL_MS = 900_000  # listed objects are kept this long after the last renewal
FILE_URL_MS = 900_000  # the files of a listing can be fetched this long
FILES_LISTED_MAX = 50_000
ROWS_FILES_BYTES_MAX = 4 << 30  # table rows as Parquet files with ranges, on an API server's disk
PULL_WAIT_MS_MAX = 30_000
PULL_ROWS_DEFAULT = 10_000
PULL_ROWS_MAX = 200_000
KEY_CACHE_MS = 5_000  # a key revoked by another process is accepted at most this long
LOGIN_CODE_MS = 600_000
SESSION_MS = 12 * 3_600_000
KEPT_BODY_BYTES_MAX = 1 << 20  # of a request with an Idempotency-Key, and of its answer
STREAM_ROWS_DEFAULT = 5_000  # between two watermarks of a stream
SPLITS_MAX = 1000  # parts of one plan of a long pull

assert HEARTBEAT_MS * 3 < LEASE_MS
assert JOB_RENEW_MS * 3 < JOB_LEASE_MS
assert SEGMENT_OWN_BYTES_MIN <= SEGMENT_SHARED_BYTES_TARGET < SEGMENT_BYTES_TARGET < SEGMENT_BYTES_MAX <= FILE_BYTES_MAX
