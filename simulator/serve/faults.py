"""Faults of a served cluster: everything here is within what clients of a real one must handle.

Probabilities are between 0 and 1, per occasion; times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often each fault happens."""

    refused: float = 0.0  #: registrations, with any error that a client may try again after
    failed: float = 0.0  #: live registrations, at a tick
    bare: float = 0.0  #: errors without the leader or the regions that they might name
    held: float = 0.0  #: rows of a registration come late, by up to `held_s`
    held_s: float = 0.3
    quiet: float = 0.0  #: registrations that a tick leaves out
    lower: float = 0.0  #: groups of regions that are announced with less than they had
    empty: float = 0.0  #: rows without anything between the others
    packed: float = 0.0  #: resolved ts with packed region ids
    scan_rows: int | None = None  #: of an opening scan at once; None = all
    scan_s: float = 0.0  #: it begins so much later, at most
    cut: float = 0.0  #: streams of a store, per second
    raw_refused: float = 0.0  #: RawKV requests, with any region error; writes may have been applied
    raw_lost: float = 0.0  #: answers to RawKV requests
    raw_late: float = 0.0  #: RawKV writes whose connection is cut, and which are applied when their time is almost over
    pd_late_s: float = 0.0  #: largest age of PD's answers
    pd_leaderless: float = 0.0  #: regions in PD's lists
    pd_missing: float = 0.0  #: regions that PD's lists leave out


CALM = Faults()
STORM = Faults(
    refused=0.1,
    failed=0.005,
    bare=0.4,
    held=0.05,
    quiet=0.05,
    lower=0.1,
    empty=0.1,
    packed=0.5,
    scan_rows=7,
    scan_s=0.05,
    cut=0.05,
    raw_refused=0.1,
    raw_lost=0.01,
    raw_late=0.01,
    pd_late_s=0.5,
    pd_leaderless=0.03,
    pd_missing=0.02,
)
