"""What the processes of a deployment carry, and whether its load fits them. Pure; `tistream doctor` shows the result.

The load of a role, in cores, is the sum of three shares: changes, tenants that write and tenants that do not, each
divided by what one core carries of it (`CAPACITY`). A process fills about one core. The figures were measured on one
machine (docs/figures.md, "What a core carries"), so a shortage is a warning, never a failure.

Rates come from the heartbeats of workers, which average over RATE_WINDOW_S. API servers and standby meta servers do not
register, and are not counted here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tistream.diagnostics.findings import Finding, fail, ok, warn
from tistream.limits import RATE_WINDOW_S

NEAR = 0.7  #: of what a role carries: above it, one more process is due
_NEVER = math.inf
_ROWS_PER_CHANGE = 2  # a change arrives as a prewrite and as a commit
_FILES_PER_WRITER = 2  # a second: the measured tenants had two stores, which put a file each second


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one core of a service carries of each, were it all of its load."""

    at_rest: float  #: of a core, without any load
    changes: float = _NEVER  #: a second
    writing: float  #: tenants whose two stores put a file each second
    idle: float  #: tenants that do not write


#: as measured by `python -m benchmarks.load capacity`
CAPACITY = {
    "meta": Capacity(at_rest=0.017, writing=2_400, idle=3_100),
    "dispatcher": Capacity(at_rest=0.024, changes=1_700_000, writing=320, idle=950),
    "sorter": Capacity(at_rest=0.032, changes=890_000, writing=560, idle=750),
    "api": Capacity(at_rest=0.051, changes=380_000, writing=3_500, idle=1_100),
    "database": Capacity(at_rest=0.027, writing=5_400, idle=2_100),
}
_SCALED = {"dispatcher": "tistream dispatch", "sorter": "tistream sort"}  # roles whose processes share the load
_SINGLE = {
    "meta": "only the elected meta server works: give it a faster core",
    "database": "give the catalog's database more cores, as far as it is MariaDB on a machine like the measured one",
}
_REPLICAS = 2  #: of dispatchers and sorters, as the chart has them; `tistream up` is one process in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a deployment has to do now."""

    changes: float  #: a second
    files: float  #: batch files a second
    tenants: int

    @property
    def writing(self) -> float:
        """As many of the measured tenants that write as put these files."""
        return self.files / _FILES_PER_WRITER

    @property
    def idle(self) -> float:
        """Tenants beside these."""
        return max(0.0, self.tenants - self.writing)


def load_of(workers: Iterable[Mapping[str, Any]], tenants: int) -> Load:
    """The load that live workers report. `workers`: items of /v1/workers."""
    alive = [worker for worker in workers if worker["alive"]]
    return Load(
        changes=sum(worker["rows_per_s"] for worker in alive) / _ROWS_PER_CHANGE,
        files=sum(worker["files_per_s"] for worker in alive),
        tenants=tenants,
    )


def cores_for(capacity: Capacity, load: Load) -> float:
    """How many cores of a service the load fills, beyond what its processes take at rest."""
    return load.changes / capacity.changes + load.writing / capacity.writing + load.idle / capacity.idle


def processes_for(capacity: Capacity, cores: float) -> int:
    """How many processes carry this without being near their end."""
    return max(1, math.ceil(cores / (NEAR - capacity.at_rest) - 1e-9))


def check_capacity(workers: Sequence[Mapping[str, Any]], tenants: int) -> list[tuple[str, Finding]]:
    """(name, finding) for each role whose load is known."""
    load = load_of(workers, tenants)
    alive = Counter(worker["kind"] for worker in workers if worker["alive"])
    embedded = any(w["alive"] and w["kind"] == "dispatcher" and not w["address"] for w in workers)
    least = 1 if embedded else _REPLICAS
    checks = [(f"capacity: {role}", _scaled(role, alive[role], load, least)) for role in _SCALED if alive[role]]
    checks += [(f"capacity: {role}", _single(role, load)) for role in _SINGLE]
    return [*checks, ("capacity: api", _api(load))]


def _scaled(role: str, processes: int, load: Load, least: int) -> Finding:
    """Judge a role whose processes share the load."""
    capacity, cores = CAPACITY[role], cores_for(CAPACITY[role], load)
    share = cores / processes + capacity.at_rest
    needed = processes_for(capacity, cores)
    facts = {"processes": processes, "cores": round(cores, 3), "share": round(share, 3), "needed": needed}
    carried = f"{processes * capacity.changes:,.0f} changes a second, or {processes * capacity.writing:,.0f} tenants"
    verb = "carries" if processes == 1 else "carry"
    words = f"{_count(processes, role)} {verb} {carried} that write; {_brought(load)}: {_filled(share, processes)}"
    if share >= NEAR:
        state = "short" if share >= 1 else "near"
        return warn(f"{state}: {words}; add {needed - processes}: {_SCALED[role]}", **facts)
    if processes < least:
        return warn(f"{words}; the work rests while it restarts: run {least}, as the chart does", **facts)
    return ok(words, **facts)


def _single(role: str, load: Load) -> Finding:
    """Judge a role in which one process does all the work."""
    capacity, cores = CAPACITY[role], cores_for(CAPACITY[role], load)
    share = cores + capacity.at_rest
    words = f"one carries {capacity.writing:,.0f} tenants that write; {_brought(load)}: {_filled(share, 1)}"
    facts = {"cores": round(cores, 3), "share": round(share, 3)}
    if share >= NEAR:
        return warn(f"{'short' if share >= 1 else 'near'}: {words}; {_SINGLE[role]}", **facts)
    return ok(words, **facts)


def _api(load: Load) -> Finding:
    """What API servers need: they do not register, and their readers are not known here."""
    reader = load.changes / CAPACITY["api"].changes
    rest = cores_for(CAPACITY["api"], Load(changes=0, files=load.files, tenants=load.tenants))
    words = f"{_brought(load)}: a reader of all of them fills {reader:.0%} of a core, tenants {rest:.0%}"
    return ok(
        f"{words}; API servers are not counted, run as many as your readers need, and 2 at least",
        reader=round(reader, 3),
        tenants=round(rest, 3),
    )


def check_jobs(queued: Sequence[Mapping[str, Any]], workers: Iterable[Mapping[str, Any]]) -> Finding:
    """Judge the maintenance jobs that wait, by the executors that are live. `queued`: items of /v1/jobs."""
    alive = Counter(worker["kind"] for worker in workers if worker["alive"])
    spark, threads = alive["spark"], alive["maintain"]
    large = sum(job["executor"] == "spark" for job in queued)
    facts = {"queued": len(queued), "queued_for_spark": large, "maintain": threads, "spark": spark}
    words = f"queued: {len(queued):,}"
    if queued and not spark and not threads:
        return fail(f"{words}, and no executor is up: start tistream maintain", **facts)
    if large and not spark:
        return fail(f"{words}, {large:,} for Spark, which is not up: start tistream spark", **facts)
    if not spark and not threads:
        return warn("no executor is up: small files stay and retention stops; start tistream maintain", **facts)
    return ok(f"{words}; up: {threads} maintain, {spark} spark", **facts)


def _brought(load: Load) -> str:
    return (
        f"the last {RATE_WINDOW_S:.0f} s brought {load.changes:,.0f} changes and {load.files:,.1f} files a second "
        f"of {_count(load.tenants, 'tenant')}"
    )


def _filled(share: float, processes: int) -> str:
    return f"{share:.0%} of {'its core' if processes == 1 else 'each core'}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
