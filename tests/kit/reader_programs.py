"""Programs that read with the client of this release or of one before: `python -c PROGRAM ...`."""

from __future__ import annotations

#: url, path, upto: all changes of tenant 1/1 up to a timestamp, by a cursor of its own, to the file `path`
FOLLOW = """
import sys
from tistream.client import connect

url, path, upto = sys.argv[1:]
with connect(url, retry_s=120) as client, open(path, "wb") as out:
    cursor, resolved_ts, more = None, 0, True
    while resolved_ts < int(upto) or more:
        page = client.tenant(1, 1).page(
            cursor=cursor, format="canal-json", wait_s=1, options={"enable-tidb-extension": "true"}
        )
        out.write(page.content)
        out.flush()
        cursor, resolved_ts, more = page.next_cursor, page.resolved_ts, page.has_more
"""

#: url, path, consumer, options (JSON): a member of a consumer. It writes each batch to the file `path`, waits for a
#: line of its input, which may be at its end, and acknowledges the batch. It says on standard error when that is
#: refused, as its partition was taken since
MEMBER = """
import json, sys, time
from tistream.client import connect
from tistream.errors import Fenced, StateForbids

url, path, consumer, options = sys.argv[1:]
with connect(url, retry_s=120) as client, open(path, "w") as out:
    member = client.tenant(1, 1).consumer(consumer, **json.loads(options))
    while True:
        try:
            batch = member.pull()
        except StateForbids:
            break  # the consumer has reached its target
        if batch is None:
            time.sleep(0.05)
            continue
        said = {"cursor": batch.page.next_cursor, "after": batch.checkpoint_ts, "rows": batch.page.content.decode()}
        print(json.dumps(said), file=out, flush=True)
        sys.stdin.readline()
        try:
            member.acknowledge(batch)
        except Fenced:
            print("fenced", file=sys.stderr, flush=True)
"""
