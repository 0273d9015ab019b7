"""Mutants of compaction: the swap, what a job writes, and the read leases of readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simulator.dst.mutants import register, replaced, reworded


@register("swap-of-what-is-gone", "a swap does not look whether its inputs are still live", scenario="compaction")
def _swap_of_what_is_gone() -> Iterator[None]:
    from tistream.catalog.log import compaction

    with reworded(
        compaction,
        "_exchange",
        ("if not _all_live(conn, keys):", "if False:"),
        ("if _remove(conn, piece) != piece.segments:", "if _remove(conn, piece) < 0:"),
    ):
        yield


@register("swapped-one-by-one", "inputs leave one by one, then the output comes", scenario="compaction")
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

    with replaced(job, "swap", apart):
        yield


@register("compacted-unverified", "a compacted file that lacks a row is taken", scenario="compaction")
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


@register(
    "leased-object-collected",
    "objects that a compaction replaced are deleted under a read lease",
    scenario="compaction",
)
def _pinned_object_collected() -> Iterator[None]:
    from tistream.catalog.log import objects

    with replaced(objects, "_SUPERSEDED", objects._REPLACED):
        yield


@register("lease-not-renewed", "a long page does not renew its read lease", scenario="compaction")
def _pin_not_renewed() -> Iterator[None]:
    from reading.read_leases import ReadLease

    with replaced(ReadLease, "renew", lambda self: None):
        yield
