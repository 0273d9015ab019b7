"""Why a tenant is late, in one sentence: how late, since when, because of what, and what to do next. Pure.

The first of these that holds is the cause:

    waiting, paused     the tenant has not started, or an operator paused it
    ended               its streams have ended and everything is served: nothing is late
    quarantined         a store contradicted its promise; nothing above the last good timestamp is served
    a watermark gap     of `tistream.admin.core.watermark_gaps`: of the task that is furthest behind, by CAUSES; an open
                        transaction before the regions that stand where it began
    replay              a replay holds its tasks
    no dispatcher       the store that is read least far has no dispatcher that lives
    a slow stage        the one that holds back most of the lag (`STAGE_STEPS`)
    a slow consumer     the one furthest behind the watermark; or a changefeed with a destination

A tenant with none of the first six and with a lag below LATE_S is not late. Then a consumer may be: a slow one counts
only when nothing else is late, because it waits for all that comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tistream.admin.core.units import seconds_text
from tistream.admin.core.watermark_gaps import Cause, WatermarkGap, without_followers
from tistream.ids import Tenant

LATE_S = 10  #: a lag below this is normal: flushes, heartbeats and resolved timestamps take seconds
CAUSES = (
    Cause.AWAITING,
    Cause.PAUSED,
    Cause.STOPPED,
    Cause.NO_SORTER,
    Cause.SILENT,
    Cause.WATERMARK_GAP,
    Cause.STANDING,
)
STAGE_STEPS = {
    "upstream_flush": (
        "nothing newer is in the bucket",
        "check that its pusher runs and its uploads succeed: tistream doctor --pd HOST:PORT",
    ),
    "fetch": ("its files are in the bucket and not read yet", "check the dispatchers' load: tistream workers list"),
    "match": ("its sorter does not keep up", "add a sorter, or split the task: tistream tasks split TASK"),
    "watermark_gap_wait": ("a region or an open transaction holds the watermark back", "see tistream gaps"),
    "flush": (
        "its rows are ordered and not in the committed log yet",
        "check how fast bucket and catalog answer: tistream doctor",
    ),
    "serve": ("its rows wait for the schema history", "look at the log of the API server"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A store whose rows nothing serves until an operator decides."""

    store_id: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReader:
    """A consumer that has not acknowledged what is served, or a changefeed that has not written it."""

    name: str
    lag_s: float  #: from its checkpoint to the watermark
    since: str  #: the time of its checkpoint
    members: int  #: whose lease runs
    idle_s: float  #: since its last request
    state: str = "normal"
    destination: str = ""  #: where the service writes it; empty: members read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """What is known of a tenant's lag."""

    tenant: Tenant
    state: str
    lag_s: float | None  #: None: nothing is served yet
    since: str | None  #: the time up to which it is complete
    ended: bool = False
    gaps: Sequence[WatermarkGap] = ()
    quarantined: Quarantined | None = None
    has_leader: bool = True  #: a meta server leads, so tasks get owners
    replay: str | None = None  #: the worker that replays its backlog
    lost_store: int | None = None  #: a store without a dispatcher that lives
    lost_dispatcher: str | None = None  #: the dispatcher that it had
    slowest: Sequence[str] = ()  #: the stages that hold back most; several when they cannot be told apart
    where: str = ""  #: the store, dispatcher or task of that stage
    is_ddl: bool = False  #: that task is the one of DDL
    reader: SlowReader | None = None  #: the one that is furthest behind


def lag_sentence(late: Late) -> str:
    """The sentence."""
    main_cause = _cause(late)
    if main_cause is None:
        if late.reader is not None and late.reader.lag_s >= LATE_S:
            return _of_reader(late.tenant, late.reader)
        if late.ended:
            return f"Tenant {late.tenant} has ended, complete up to {late.since}; nothing is late."
        if late.lag_s is None:
            return f"Tenant {late.tenant} is {late.state} and serves nothing yet; nothing is late."
        return f"Tenant {late.tenant} is {seconds_text(late.lag_s)} behind, which is normal; nothing is late."
    cause, step = (" ".join(words.split()).rstrip(" .") for words in main_cause)
    if late.lag_s is None:
        return f"Tenant {late.tenant} serves nothing yet, because {cause}; next: {step}."
    behind = seconds_text(late.lag_s)
    return f"Tenant {late.tenant} is {behind} late, since {late.since}, because {cause}; next: {step}."


def _cause(late: Late) -> tuple[str, str] | None:
    """The cause and the next step; None when nothing is late."""
    resting = [gap for gap in late.gaps if gap.cause in (Cause.AWAITING, Cause.PAUSED)]
    if resting:
        return resting[0].sentence, resting[0].next_step
    if late.ended:
        return None
    ids = f"-c {late.tenant.cluster_id} -t {late.tenant.tenant_id}"
    if (bad := late.quarantined) is not None:
        rows = "1 row" if bad.rows == 1 else f"{bad.rows} rows"
        cause = f"store {bad.store_id} is quarantined: it sent {rows} at or below its own resolved timestamp"
        return cause, f"look at them, then reject the store or connect anew: tistream store quarantine list {ids}"
    if late.gaps:
        return _of_gap(min(without_followers(late.gaps), key=_holds_back), late)
    if late.replay is not None:
        return f"{late.replay} replays its backlog", "wait until the replay ends: tistream workers show " + late.replay
    if late.lost_store is not None:
        gone = f"dispatcher {late.lost_dispatcher} is down" if late.lost_dispatcher else "it has no dispatcher"
        step = "check that a dispatcher and a meta server are up: tistream workers list"
        return f"no file of store {late.lost_store} is read: {gone}", step
    if late.lag_s is None or late.lag_s < LATE_S or not late.slowest:
        return None
    causes = [STAGE_STEPS[stage] for stage in late.slowest]
    cause = " or ".join(words for words, _ in causes)
    step = causes[0][1]
    if late.is_ddl and late.slowest[0] == "match":  # it is one task, which nothing divides
        step = "look at the load of its sorter, and move its other tasks away: tistream workers list"
    return f"{cause} ({late.where})" if late.where else cause, step


def _of_reader(tenant: Tenant, slow: SlowReader) -> str:
    ids = f"-c {tenant.cluster_id} -t {tenant.tenant_id}"
    behind = seconds_text(slow.lag_s)
    if slow.destination:
        states = {"failed": "it has failed", "error": "a write is tried again or a change is refused"}
        cause = states.get(slow.state, f"{slow.destination} does not take changes as fast as they come")
        return (
            f"Changefeed {slow.name} of tenant {tenant} is {behind} late, since {slow.since}, because {cause}; next: "
            f"look at its lanes and their errors: tistream changefeed query {slow.name} {ids}."
        )
    if slow.members:
        count = "its member does" if slow.members == 1 else f"its {slow.members} members do"
        cause = f"{count} not acknowledge as fast as changes come"
        step = f"make them faster, or start more of them: tistream consumer query {slow.name} {ids}"
    else:
        cause = f"it has no member, and its last request was {seconds_text(slow.idle_s)} ago"
        step = f"start its members again, or remove it if it is not needed: tistream consumer list {ids}"
    return (
        f"Consumer {slow.name} of tenant {tenant} is {behind} late, since {slow.since}, because {cause}; next: {step}."
    )


def _holds_back(gap: WatermarkGap) -> tuple[int, int, int]:
    """The gap that sorts first holds the tenant back: its task is complete up to the least timestamp. Those of one task
    are in the order of CAUSES, the lowest first."""
    complete = gap.task.durable_ts if gap.task is not None else gap.watermark or 0
    return complete, CAUSES.index(gap.cause), gap.watermark or 0


def _of_gap(gap: WatermarkGap, late: Late) -> tuple[str, str]:
    if gap.cause in (Cause.NO_SORTER, Cause.SILENT) and not late.has_leader:
        return f"{gap.sentence}, and no meta server leads", "start a meta server: tistream workers list shows them"
    return gap.sentence, gap.next_step
