"""Broken rules of what an error, or a lost file, may stop. Each function names what it breaks."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.dst.mutants import register, reworded


@register("errors-spread", "an error that nobody expects ends the thread, and with it all other items", "isolation")
def _errors_spread() -> Iterator[None]:
    from tistream.runtime.containment import Containment

    with reworded(Containment, "run", ("self.failed(item, e)", "raise")):
        yield


@register("merge-holds", "a merge that cannot go on leaves its tasks at the place where they wait", "isolation")
def _merge_holds() -> Iterator[None]:
    from sorter.worker.merging import Merging

    with reworded(Merging, "step", ("_abort(runners, ids)", "pass")):
        yield


@register(
    "durable-watermark-forgotten",
    "after a restart a subscription that begins at `durable_ts` counts only once W is there",
    "isolation",
)
def _durable_ts_forgotten() -> Iterator[None]:
    from sorter.core.task_core import TaskCore

    with reworded(
        TaskCore,
        "__init__",
        ("RangeWatermarkMap(range_, start_ts, durable_ts=durable_ts)", "RangeWatermarkMap(range_, start_ts)"),
    ):
        yield
