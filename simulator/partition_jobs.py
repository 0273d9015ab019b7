"""The DDL jobs that change physical ids, step by step as TiDB runs them: TRUNCATE TABLE and all partition DDL.

Each step is one transaction: the TableInfo of the next schema version, and the job's row with its schema state. What
sessions do under each version follows from the TableInfo (`partitions`).

    TRUNCATE TABLE         done: new ids
    ADD PARTITION          replica only (adding) -> done; of RANGE and LIST
    DROP PARTITION         write only (dropping, not read any more) -> delete only (gone) -> delete reorganization
                           -> done
    TRUNCATE PARTITION     write only (new ids are named) -> delete only (they are read) -> delete reorganization
                           -> done
    EXCHANGE PARTITION     write only (the plain table takes fitting rows only) -> done: the two ids swap
    reorganisations        delete only (adding, dropping) -> write only -> write reorganization, rows are copied ->
                           delete reorganization (the new ones are read) -> public -> done; also ADD and COALESCE
                           PARTITION of HASH and KEY, and PARTITION BY and REMOVE PARTITIONING, after which the table
                           has a new id

A reorganisation may be rolled back until the new partitions are read: then its copies belong to no table.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.partitions import (
    HANDLES,
    MAXVALUE,
    Action,
    Json,
    SchemaState,
    Scheme,
    buckets,
    definition,
    located,
    partition_info,
)

Entry = tuple[int, Json]  #: database id, TableInfo

RUNNING, ROLLING_BACK, ROLLED_BACK, DONE = 1, 2, 3, 4  #: states of a job
_ROLLBACK = 0.15  # of the reorganisations
_RENUMBERED = 0.3  # of the jobs of partitioned tables: after them the table has a new id
_EXCHANGED = 0.3  # of the other jobs of RANGE and LIST
_PARTITIONS_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """One transaction of a job. From its commit on sessions use `tables` (by id; None: there is no such table)."""

    schema_state: SchemaState
    tables: Mapping[int, Entry | None] = field(default_factory=dict)
    state: int = RUNNING
    copies: float = 0.0  #: share of the rows that is copied before the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job as its steps. The consumer of a feed learns from the DDL alone that rows of `emptied` are gone, or that a
    partition and a table have `exchanged` theirs."""

    type: Action
    table: Entry  #: as the job's row names it
    query: str  #: with {} for the table's name
    steps: tuple[JobStep, ...]
    emptied: frozenset[int] = frozenset()  #: physical ids
    exchanged: tuple[int, int] | None = None  #: physical ids of the partition and of the table, before
    renumbered: Mapping[int, int] = field(default_factory=dict)  #: table id after -> before


class PartitionJobs:
    """Makes up plans that fit the tables. `new_id` gives unused ids; `fits`: whether all rows of a plain table belong
    to a partition of another one."""

    def __init__(self, new_id: Callable[[], int], fits: Callable[[Json, Json, int], bool]) -> None:
        self._id = new_id
        self._fits = fits
        self._names = 0

    def propose(self, rand: random.Random, tables: Sequence[Entry]) -> JobPlan:
        """A job that can run now."""
        plan: JobPlan | None = None
        while plan is None:
            plan = self._proposed(rand, tables)
        return plan

    def _proposed(self, rand: random.Random, tables: Sequence[Entry]) -> JobPlan | None:
        entry = rand.choice(tables)
        part = entry[1]["partition"]
        scheme = Scheme(part["type"]) if part else Scheme.NONE
        if scheme is Scheme.NONE:
            return rand.choice([self._truncate_table, self._partition_by])(rand, entry)
        if rand.random() < _RENUMBERED:
            return rand.choice([self._truncate_table, self._partition_by, self._remove_partitioning])(rand, entry)
        if scheme in (Scheme.HASH, Scheme.KEY):
            return rand.choice([self._truncate_partition, self._add_or_coalesce, self._add_or_coalesce])(rand, entry)
        others = [e for e in tables if not e[1]["partition"]]
        if others and rand.random() < _EXCHANGED:
            return self._exchange(rand, entry, rand.choice(others))
        kinds = [self._add_partition, self._drop_partition, self._truncate_partition, self._reorganize]
        return rand.choice(kinds)(rand, entry)

    # -- jobs without copies ---------------------------------------------------------------------------------------

    def _truncate_table(self, rand: random.Random, entry: Entry) -> JobPlan:
        db_id, old = entry
        info = copy.deepcopy(old)
        info["id"] = self._id()
        for each in (info["partition"] or {}).get("definitions", ()):
            each["id"] = self._id()
        part = old["partition"]
        emptied = [d["id"] for d in part["definitions"]] if part else [old["id"]]
        tables: dict[int, Entry | None] = {old["id"]: None, info["id"]: (db_id, info)}
        return JobPlan(
            type=Action.TRUNCATE_TABLE,
            table=entry,
            query="TRUNCATE TABLE {}",
            steps=(JobStep(state=DONE, schema_state=SchemaState.PUBLIC, tables=tables),),
            emptied=frozenset(emptied),
            renumbered={info["id"]: old["id"]},
        )

    def _truncate_partition(self, rand: random.Random, entry: Entry) -> JobPlan:
        _, old = entry
        mine = old["partition"]["definitions"]
        chosen = sorted(rand.sample(range(len(mine)), rand.choice((1, 1, min(2, len(mine))))))
        before = [copy.deepcopy(mine[n]) for n in chosen]
        new = [{**mine[n], "id": self._id()} for n in chosen]
        after = [*mine]
        for n, each in zip(chosen, new, strict=True):
            after[n] = each
        busy: Json = {"ddl_action": int(Action.TRUNCATE_PARTITION), "new_partition_ids": [d["id"] for d in new]}
        switched: Json = {**busy, "definitions": after, "dropping_definitions": before}
        return JobPlan(
            type=Action.TRUNCATE_PARTITION,
            table=entry,
            query=f"ALTER TABLE {{}} TRUNCATE PARTITION {_names(before)}",
            steps=(
                _step(entry, SchemaState.WRITE_ONLY, **busy),
                _step(entry, SchemaState.DELETE_ONLY, **switched),
                _step(entry, SchemaState.DELETE_REORGANIZATION, **switched),
                _step(entry, SchemaState.NONE, DONE, definitions=after),
            ),
            emptied=frozenset(d["id"] for d in before),
        )

    def _drop_partition(self, rand: random.Random, entry: Entry) -> JobPlan | None:
        mine = entry[1]["partition"]["definitions"]
        if len(mine) < 2:
            return None
        chosen = rand.sample(range(len(mine)), rand.choice((1, 1, min(2, len(mine) - 1))))
        gone = [d for n, d in enumerate(mine) if n in chosen]
        kept = [d for n, d in enumerate(mine) if n not in chosen]
        busy: Json = {"ddl_action": int(Action.DROP_PARTITION), "dropping_definitions": gone}
        num = len(mine)  # TiDB leaves it as it was
        return JobPlan(
            type=Action.DROP_PARTITION,
            table=entry,
            query=f"ALTER TABLE {{}} DROP PARTITION {_names(gone)}",
            steps=(
                _step(entry, SchemaState.WRITE_ONLY, **busy),
                _step(entry, SchemaState.DELETE_ONLY, **busy, definitions=kept, num=num),
                _step(entry, SchemaState.DELETE_REORGANIZATION, **busy, definitions=kept, num=num),
                _step(entry, SchemaState.NONE, DONE, definitions=kept, num=num),
            ),
            emptied=frozenset(d["id"] for d in gone),
        )

    def _add_partition(self, rand: random.Random, entry: Entry) -> JobPlan | None:
        part = entry[1]["partition"]
        mine, scheme = part["definitions"], Scheme(part["type"])
        if len(mine) >= _PARTITIONS_MAX or (scheme is Scheme.RANGE and mine[-1]["less_than"] == [MAXVALUE]):
            return None
        if scheme is Scheme.RANGE:
            added = definition(self._id(), self._name(), below=int(mine[-1]["less_than"][0]) + HANDLES)
        else:
            used = set(buckets(scheme, mine))
            added = definition(self._id(), self._name(), values=[min(set(range(len(used) + 1)) - used)])
        return JobPlan(
            type=Action.ADD_PARTITION,
            table=entry,
            query="ALTER TABLE {} ADD PARTITION (...)",
            steps=(
                _step(
                    entry, SchemaState.REPLICA_ONLY, ddl_action=int(Action.ADD_PARTITION), adding_definitions=[added]
                ),
                _step(entry, SchemaState.PUBLIC, DONE, definitions=[*mine, added]),
            ),
        )

    def _exchange(self, rand: random.Random, entry: Entry, other: Entry) -> JobPlan | None:
        (db_id, old), (other_db, plain) = entry, other
        place = located(Scheme(old["partition"]["type"]), old["partition"]["definitions"], 0)
        if place is None:
            return None
        part = old["partition"]["definitions"][place]
        if old["cols"] != plain["cols"] or not self._fits(plain, old, part["id"]):
            return None
        swapped = copy.deepcopy(old)
        swapped["partition"]["definitions"][place]["id"] = plain["id"]
        marked = {
            **copy.deepcopy(plain),
            "exchange_partition_info": {
                "exchange_partition_id": old["id"],
                "exchange_partition_def_id": part["id"],
                "exchange_partition_flag": False,
            },
        }
        moved = {**copy.deepcopy(plain), "id": part["id"]}
        return JobPlan(
            type=Action.EXCHANGE_PARTITION,
            table=other,
            query=f"ALTER TABLE `{old['name']['O']}` EXCHANGE PARTITION {_names([part])} WITH TABLE {{}}",
            steps=(
                JobStep(schema_state=SchemaState.WRITE_ONLY, tables={plain["id"]: (other_db, marked)}),
                JobStep(
                    schema_state=SchemaState.NONE,
                    state=DONE,
                    tables={plain["id"]: None, old["id"]: (db_id, swapped), part["id"]: (other_db, moved)},
                ),
            ),
            exchanged=(part["id"], plain["id"]),
            renumbered={part["id"]: plain["id"]},
        )

    # -- reorganisations -------------------------------------------------------------------------------------------

    def _add_or_coalesce(self, rand: random.Random, entry: Entry) -> JobPlan:
        part = entry[1]["partition"]
        mine = part["definitions"]
        adds = len(mine) < 2 or (len(mine) < _PARTITIONS_MAX and rand.random() < 0.5)
        count = len(mine) + (rand.choice((1, 1, 2)) if adds else -1)
        added = [definition(self._id(), f"p{n}") for n in range(count)]
        word = "ADD PARTITION PARTITIONS" if adds else "COALESCE PARTITION"
        query = f"ALTER TABLE {{}} {word} {abs(count - len(mine))}"
        return self._reorganisation(rand, entry, query, mine, added, added)

    def _reorganize(self, rand: random.Random, entry: Entry) -> JobPlan:
        part = entry[1]["partition"]
        mine, scheme = part["definitions"], Scheme(part["type"])
        first = rand.randrange(len(mine))
        last = min(len(mine) - 1, first + rand.choice((0, 1, 1)))
        gone = mine[first : last + 1]
        of = list(_buckets_of(scheme, mine, first, last))
        parted = len(of) > 1 and len(gone) == 1
        groups = [of[: len(of) // 2], of[len(of) // 2 :]] if parted else [of]
        if scheme is Scheme.RANGE:
            bounds = [*(HANDLES * (group[-1] + 1) for group in groups[:-1]), gone[-1]["less_than"][0]]
            added = [definition(self._id(), self._name(), below=bound) for bound in bounds]
        else:
            added = [definition(self._id(), self._name(), values=group) for group in groups]
        after = [*mine[:first], *added, *mine[last + 1 :]]
        query = f"ALTER TABLE {{}} REORGANIZE PARTITION {_names(gone)} INTO (...)"
        return self._reorganisation(rand, entry, query, gone, added, after)

    def _partition_by(self, rand: random.Random, entry: Entry) -> JobPlan:
        scheme = rand.choice((Scheme.HASH, Scheme.KEY, Scheme.RANGE))
        count = rand.randint(2, 3)
        if scheme is Scheme.RANGE:
            bounds: list[int | str] = [*(HANDLES * (n + 1) for n in range(count - 1)), MAXVALUE]
            added = [definition(self._id(), f"p{n}", below=bound) for n, bound in enumerate(bounds)]
        else:
            added = [definition(self._id(), f"p{n}") for n in range(count)]
        query = f"ALTER TABLE {{}} PARTITION BY {scheme.name}(`id`) ..."
        return self._renumbering(rand, entry, Action.PARTITION_BY, query, scheme, added)

    def _remove_partitioning(self, rand: random.Random, entry: Entry) -> JobPlan:
        added = [definition(self._id(), "CollapsedPartitions")]
        query = "ALTER TABLE {} REMOVE PARTITIONING"
        return self._renumbering(rand, entry, Action.REMOVE_PARTITIONING, query, Scheme.NONE, added)

    def _reorganisation(
        self, rand: random.Random, entry: Entry, query: str, gone: list[Json], added: list[Json], after: list[Json]
    ) -> JobPlan:
        """Partitions replace others; the table stays the same."""
        part = entry[1]["partition"]
        busy = {
            "ddl_action": int(Action.REORGANIZE_PARTITION),
            "ddl_type": part["type"],
            "ddl_expr": part["expr"],
            "adding_definitions": added,
            "dropping_definitions": gone,
            "original_partition_ids_order": [d["id"] for d in part["definitions"]],
        }
        done = _step(entry, SchemaState.NONE, DONE, definitions=after, ddl_type=part["type"], ddl_expr=part["expr"])
        steps = _steps(entry, busy, {**busy, "definitions": after}, done)
        return JobPlan(
            type=Action.REORGANIZE_PARTITION, table=entry, query=query, steps=_or_rolled_back(rand, entry, steps)
        )

    def _renumbering(
        self, rand: random.Random, entry: Entry, action: Action, query: str, scheme: Scheme, added: list[Json]
    ) -> JobPlan:
        """The table is partitioned in another way, or no more, and has a new id in the end."""
        db_id, old = entry
        table_id = added[0]["id"] if action is Action.REMOVE_PARTITIONING else self._id()
        whole = old["partition"] or partition_info(Scheme.NONE, [definition(old["id"], "pFullTable")])
        now = {**old, "partition": whole}
        to = partition_info(scheme, added)
        busy = {
            "ddl_action": int(action),
            "adding_definitions": added,
            "dropping_definitions": whole["definitions"],
            "new_table_id": table_id,
        }
        switched = {**busy, "definitions": added, "type": to["type"], "expr": to["expr"]}
        final = {**copy.deepcopy(old), "id": table_id, "partition": None if scheme is Scheme.NONE else to}
        done = JobStep(state=DONE, schema_state=SchemaState.NONE, tables={old["id"]: None, table_id: (db_id, final)})
        steps = _steps(
            (db_id, now),
            {**busy, "ddl_type": to["type"], "ddl_expr": to["expr"] or whole["expr"]},
            {**switched, "ddl_type": whole["type"], "ddl_expr": whole["expr"]},
            done,
        )
        steps = _or_rolled_back(rand, entry, steps)
        renumbered = {table_id: old["id"]} if steps[-1] is done else {}
        return JobPlan(type=action, table=entry, query=query, steps=steps, renumbered=renumbered)

    def _name(self) -> str:
        self._names += 1
        return f"q{self._names}"


def _step(entry: Entry, schema_state: SchemaState, state: int = RUNNING, **changed: object) -> JobStep:
    """The table with these entries of its partition changed. Zero and nothing are left out where TiDB does."""
    db_id, old = entry
    info = copy.deepcopy(old)
    part = copy.deepcopy({**old["partition"], **changed})
    part["ddl_state"] = 0 if state == DONE else int(schema_state)
    if "num" not in changed:
        part["num"] = len(part["definitions"])
    for name in ("ddl_type", "ddl_expr"):
        if not part.get(name):
            part.pop(name, None)
    info["partition"] = part
    return JobStep(schema_state=schema_state, state=state, tables={info["id"]: (db_id, info)})


def _steps(entry: Entry, before: Json, after: Json, done: JobStep) -> tuple[JobStep, ...]:
    """Those of a reorganisation: `before` and `after` are the partition's entries until and since the new ones are
    read."""
    copying = _step(entry, SchemaState.WRITE_REORGANIZATION, **before)
    return (
        _step(entry, SchemaState.DELETE_ONLY, **before),
        _step(entry, SchemaState.WRITE_ONLY, **before),
        JobStep(schema_state=copying.schema_state, tables=copying.tables, copies=1.0),
        _step(entry, SchemaState.DELETE_REORGANIZATION, **after),
        _step(entry, SchemaState.PUBLIC, **after),
        done,
    )


def _or_rolled_back(rand: random.Random, entry: Entry, steps: tuple[JobStep, ...]) -> tuple[JobStep, ...]:
    """The steps, or now and then some of the first three and the table as it was."""
    if rand.random() >= _ROLLBACK:
        return steps
    made = list(steps[: rand.randint(1, 3)])
    last = made[-1]
    if last.copies:
        made[-1] = JobStep(schema_state=last.schema_state, tables=last.tables, copies=rand.random())
    db_id, old = entry
    back = {old["id"]: (db_id, copy.deepcopy(old))}
    return (
        *made,
        JobStep(state=ROLLING_BACK, schema_state=last.schema_state),
        JobStep(state=ROLLED_BACK, schema_state=SchemaState.NONE, tables=back),
    )


def _buckets_of(scheme: Scheme, mine: list[Json], first: int, last: int) -> Iterator[int]:
    if scheme is Scheme.LIST:
        return buckets(scheme, mine[first : last + 1])
    before = len(list(buckets(scheme, mine[:first])))
    return iter(list(buckets(scheme, mine[: last + 1]))[before:])


def _names(definitions: Sequence[Json]) -> str:
    return ", ".join(f"`{d['name']['O']}`" for d in definitions)
