"""Mutants of the clock rule: what pushers write counts when its time has come by the database's clock."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "future-counts (future): a batch file counts however far it is ahead of the service's time",
    ("dispatcher.tail:Tail._read", "    raise held", "    pass"),
)
broken(
    "worker-clock (future): the service's time is that of the worker's clock",
    (
        "tistream.runtime.service_time:ServiceTime.note",
        "self._noted = database_ms,",
        "self._noted = self._clock.unix_ms(),",
    ),
)
broken(
    "skew-ignored (future): a timestamp waits although it is ahead by less than is allowed",
    ("tistream.runtime.service_time:ServiceTime.wait_s", " - self._skew_max_ms", ""),
)
broken(
    "held-overtaken (future): a later file is taken while the one before it is held",
    (
        "dispatcher.subscription:Subscription._step",
        "if incarnation == newest or not _is_useless(error, tries):",
        (
            "after = self._tail.poll(incarnation, position.seq + 2) if isinstance(error, AheadOfTime) else None\n"
            "                if isinstance(after, Found): return self._batch(after.file)\n"
            "                if incarnation == newest or not _is_useless(error, tries):"
        ),
    ),
)
broken(
    "held-for-good (future): a superseded incarnation waits for its file that is ahead of time",
    ("dispatcher.subscription:_is_useless", "isinstance(error, AheadOfTime) or ", ""),
)
broken(
    "above-cut-counts (future): a resolved ts above its file's cut_ts counts",
    ("tistream.codec.batch_file:_cut_short_fault", lambda data, what, columns, cut_ts: ""),
)
