"""Mutants of compaction: the commit, what a job writes, and the read leases of readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simulator.dst.mutants import broken, register, replaced, reworded

broken(
    "swap-of-what-is-gone (compaction): a compaction commit does not check whether its inputs are still live",
    (
        "tistream.catalog.log.compaction:_exchange",
        "if not _all_live(conn, keys):",
        "if False:",
    ),
    ("tistream.catalog.log.compaction:_remove", "if counted != {key: wanted[key] for key in some}:", "if False:"),
)


@register("swapped-one-by-one (compaction): inputs leave one by one, then the output comes")
def _swapped_one_by_one() -> Iterator[None]:
    from compactor import job
    from tistream.catalog.log import compaction

    def apart(catalog: Any, tenant: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        for piece in inputs:
            with catalog.transaction() as conn:
                compaction._exchange(conn, tenant, [piece], [])
        with catalog.transaction() as conn:
            compaction._exchange(conn, tenant, [], outputs)
        return True

    with replaced(job, "commit_compaction", apart):
        yield


@register("compacted-unverified (compaction): a compacted file that lacks a row is taken")
def _compacted_unverified() -> Iterator[None]:
    from compactor import job, task
    from tistream.catalog.log import compaction

    whole = task.merge
    with (
        replaced(task, "merge", lambda tables: whole(tables).slice(1)),
        reworded(task, "compact_range", ("if before != after:", "if False:")),
        replaced(job, "verified", lambda rows, results: {r.range_id: r for r in results}.values()),
        replaced(compaction, "_check_sums", lambda inputs, outputs: None),
    ):
        yield


@register("leased-object-collected (compaction): objects that a compaction replaced are deleted under a read lease")
def _pinned_object_collected() -> Iterator[None]:
    from tistream.catalog.log import objects

    with replaced(objects, "_SUPERSEDED", objects._REPLACED):
        yield


broken(
    "lease-not-renewed (compaction): a long page does not renew its read lease",
    ("reading.log.read_leases:ReadLease.renew", lambda self: None),
)
