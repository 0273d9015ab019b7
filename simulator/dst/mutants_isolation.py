"""Broken rules of what an error, or a lost file, may stop. Each function names what it breaks."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "errors-spread (isolation): an unexpected error ends the thread, and with it all other items",
    ("tistream.runtime.containment:Containment.run", "self.failed(item, e)", "raise"),
)
broken(
    "merge-holds (isolation): a merge that cannot continue leaves its tasks at the barrier",
    ("sorter.worker.merging:Merging.step", "_abort(runners, ids)", "pass"),
)
broken(
    "durable-watermark-forgotten (isolation): after a restart a subscription from `durable_ts` waits until W is there",
    (
        "sorter.core.task_core:TaskCore.__init__",
        "RangeWatermarkMap(range_, start_ts, durable_ts=durable_ts)",
        "RangeWatermarkMap(range_, start_ts)",
    ),
)
