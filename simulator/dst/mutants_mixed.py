"""Mutants of mixed releases: when a feature is switched on, and who may run afterwards."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "feature-beside-older (mixed): a feature is switched on while a process of an earlier release lives",
    ("metaserver.loop:switch_on", "oldest is None or oldest >= f.since.number", "True"),
)
broken(
    "older-admitted (mixed): a process registers although its release is refused",
    ("tistream.catalog.work.heartbeat:register_worker", "admit(conn, catalog.release)", "pass"),
)
broken(
    "feature-without-demand (mixed): a feature is switched on and the lowest release that may run stays",
    (
        "metaserver.loop:switch_on",
        "demand(conn, by=catalog.release, lowest=feature.since)",
        "pass",
    ),
)
