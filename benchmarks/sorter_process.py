"""A sorter process as the command line runs it, which reports on demand where its processor time went.

    python -m benchmarks.sorter_process CATALOG_URL BUCKET_URL

A line "start" on its input begins the count and is answered by an empty line, "stop" ends it and is answered by a line
of JSON: processor seconds of the process and of each stage, without nested stages. Stages are the product's functions,
each wrapped in a clock of the thread's processor time, which costs about a microsecond a call.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sorter.core import prewrite_buffer, task_core, watermark
from sorter.rows import output
from sorter.worker import publisher, runner, worker
from tistream.cli import assembly
from tistream.cli.log import configure
from tistream.codec import committed_file, segment_file
from tistream.objectstore.local import LocalStore

#: where the function is named, its name, the stage
_STAGES: tuple[tuple[Any, str, str], ...] = (
    (worker.SorterWorker, "_round", "loop, rest"),
    (task_core, "IncomingRows", "arrivals"),
    (prewrite_buffer.PrewriteBuffer, "take_in", "take_in"),
    (prewrite_buffer.PrewriteBuffer, "note_ready", "watermarks"),
    (watermark.RangeWatermarkMap, "apply", "watermarks"),
    (prewrite_buffer.PrewriteBuffer, "settle", "settle"),
    (task_core.TaskCore, "take", "take"),
    (task_core.TaskCore, "flushed", "flushed"),
    (task_core.TaskCore, "flushable_bytes", "what is due"),
    (task_core.TaskCore, "pending", "what is due"),
    (output, "_piece", "put together"),
    (committed_file.CommittedFileWriter, "add", "encode"),
    (committed_file, "order_fault", "check order"),
    (segment_file, "write_batch", "arrow stream"),
    (segment_file.SegmentFileWriter, "_packed", "zstd, crc"),
    (LocalStore, "put", "put"),
    (publisher, "commit_flush", "SQL"),
    (worker, "tasks_owned_by", "SQL"),
    (worker, "list_stores", "SQL"),
    (runner.TaskRunner, "save", "snapshot"),
)


class Stages:
    """Processor seconds by stage, of calls on any one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = threading.local()

    def clocked(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function with a clock around it."""

        def timed(*args: Any, **named: Any) -> Any:
            outer = getattr(self._inside, "spent", 0.0)
            self._inside.spent = 0.0
            began = time.thread_time()
            try:
                return call(*args, **named)
            finally:
                spent = time.thread_time() - began
                self.seconds[stage] += spent - self._inside.spent
                self.calls[stage] += 1
                self._inside.spent = outer + spent

        return timed


def main() -> None:
    stages = Stages()
    for owner, name, stage in _STAGES:
        if hasattr(owner, name):
            setattr(owner, name, stages.clocked(stage, getattr(owner, name)))
    where = {"catalog": {"url": sys.argv[1]}, "object_store": {"url": sys.argv[2]}}
    flags = {f"{section}.url": of["url"] for section, of in where.items()}
    settings = assembly.load_settings(None, {**flags, "log.level": "error"})
    configure(settings.log)
    running = assembly.sorter(assembly.open_parts(settings), "sorter-1")
    running.start()
    before: dict[str, float] = {}
    for line in sys.stdin:
        now = {**stages.seconds, "process": time.process_time(), **_threads()}
        if line.strip() == "start":
            before = now
            print(flush=True)
        else:
            print(json.dumps({stage: now[stage] - before.get(stage, 0.0) for stage in now}), flush=True)
    running.close()


def _threads() -> dict[str, float]:
    """Processor seconds of the threads that read the feed, by Python's names."""
    names = {"receive, decode": "feed-task-", "hand over": "feed task "}
    seconds = dict.fromkeys(names, 0.0)
    for thread in threading.enumerate():
        for stage, prefix in names.items():
            if thread.name.startswith(prefix):
                stat = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                seconds[stage] += int(stat.split()[0]) / 1e9
    return seconds


if __name__ == "__main__":
    main()
