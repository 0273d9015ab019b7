"""When a DDL that gives a table other physical ids takes effect: at its *switch*, before the job is done (pure).

Such a DDL writes several versions of the table. The switch is the first that reads other ids than the one before: from
there on sessions read the new ids, and TiDB does not roll the job back any more. So the DDL is delivered at the
switch, not at the row that says that the job is done.

The event shows the final definition of the DDL, which comes with that row. The history waits for it, with a limit: a
job that does not end within HOLD_MS of its switch is shown with the definition of the switch. Both are decided by
commit timestamps alone, so every reader of the log decides alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas import fields
from schemas.ddl import STATE_QUEUEING, STATE_ROLLING_BACK, STATE_SYNCED, STATES_ENDED, Job, SchemaState
from schemas.meta import Definition, MetaCommit
from schemas.partitions import read_ids
from tistream import ts as tso

HOLD_MS = 2_000  #: the schema watermark stays below a switch for this long, unless the job ends earlier

_IDLE = STATES_ENDED | {STATE_QUEUEING, STATE_ROLLING_BACK}
_NO_PARTITIONS = b'"partition":null'


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended."""

    job: Job
    definitions: tuple[Definition, ...]  #: written after its switch


def switching_job(step: MetaCommit, state: SchemaState) -> Job | None:
    """The running job whose step makes a table read other physical ids than in `state`; None for none."""
    job = next((job for job in step.jobs if job.id == step.owner), None)
    if job is None or job.state in _IDLE:
        return None
    return job if any(_switches(d, state) for d in step.definitions) else None


def _switches(definition: Definition, state: SchemaState) -> bool:
    if not definition.table_id or definition.info is None:
        return False
    before = state.table(definition.table_id)
    if before is None or (_NO_PARTITIONS in definition.info and not before.partition_ids):
        return False
    try:
        return set(read_ids(fields.parsed(definition.info))) != set(before.physical_ids)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise definition.unreadable("cannot be read") from error


def held_until(step: MetaCommit) -> int:
    """The timestamp up to which the end of a job that switches with this step is awaited."""
    return step.commit_ts + (HOLD_MS << tso.LOGICAL_BITS)


def end_of(job: Job, switched: MetaCommit, later: Iterable[MetaCommit]) -> End | None:
    """How the job that switched with a step ended, from `later` steps; None when it did not end in time."""
    written: list[Definition] = []
    for step in later:
        if step.commit_ts > held_until(switched):
            return None
        if step.owner == job.id:
            written += step.definitions
        for row in step.jobs:
            if row.id == job.id and row.state in STATES_ENDED - {STATE_SYNCED}:
                return End(job=row, definitions=tuple(written))
    return None
