"""Mutants of the rules by which rows of a quarantined store are accepted into the log."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "amended-before-all (accepted): an accepted file counts as merged before every task has taken it",
    ("sorter.worker.worker:finish_accepted", ">= file.seq]", ">= 0]"),
)
broken(
    "amendment-not-compared (accepted): a cursor is served although its reader lacks accepted rows",
    ("reading.position:Served.check_seen", "a.number > seen and ", "False and "),
)
broken(
    "accepted-twice (accepted): accepted rows appear without the state that has taken their file",
    (
        "sorter.worker.runner:amend",
        "if not accepted or not switch_in(conn, task_id, epoch, snapshot):",
        "if not accepted:",
    ),
)
