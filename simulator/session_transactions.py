"""Transactions whose statements write what a session of their schema version writes, during partition DDL.

`sessions` decides which version a transaction uses, and where its rows and their copies are. A row and its copy are
written in one transaction and have the same value; all other values are unique.
"""

from __future__ import annotations

import random
from collections.abc import Set
from dataclasses import dataclass, field

from simulator.core.cluster import Cluster
from simulator.core.mvcc import Version
from simulator.ddl import UpstreamSchema
from simulator.partitions import HANDLES
from simulator.profiles import WorkloadProfile
from simulator.sessions import Held, RowKey, Sessions
from simulator.transactions import BATCH, CONFLICT, LOOKS, CommittedRow, Transactions, Tso, Txn, name_of
from tistream.model.change import Op


@dataclass(slots=True)
class _Use:
    """The progress of a transaction."""

    held: Held = field(default_factory=dict)  #: the tables that it uses, each in one version
    places: dict[bytes, RowKey] = field(default_factory=dict)  #: the rows that it wrote to


class SessionTransactions(Transactions):
    """See the module."""

    def __init__(
        self, cluster: Cluster, profile: WorkloadProfile, rand: random.Random, schema: UpstreamSchema, tso: Tso
    ) -> None:
        super().__init__(cluster, profile, rand, schema, tso)
        self._uses: dict[int, _Use] = {}  # by number of the transaction
        self._sessions = Sessions(schema, rand)

    def lag(self) -> bool:
        self._uses = {txn.number: self._use(txn) for txn in self.open}
        return self._sessions.lag(use.held for use in self._uses.values())

    def _use(self, txn: Txn) -> _Use:
        return self._uses.setdefault(txn.number, _Use())

    def _write(self, txn: Txn, blocked: Set[int]) -> str:
        written: list[RowKey] = []
        for _ in range(BATCH if txn.kind == "huge" else 1):
            again = txn.kind == "pipelined" and self._use(txn).places and self._rand.random() < 0.5
            place = self._rand.choice(list(self._use(txn).places.values())) if again else self._free_row(txn, blocked)
            if place is None:
                txn.wants = 0
                break
            keys = self._sessions.keys(place)
            if txn.kind != "pessimistic" and any(self._newest(key) > txn.start_ts for key in keys):
                why = f"meets a newer commit on {name_of(place.key)}"
                return self._start_rollback(txn, list(dict.fromkeys([*txn.keys, *keys])), "conflict", why)
            self._sessions.hold(self._use(txn).held, place)
            txn.tables.add(place.table_id)
            self._use(txn).places[place.key] = place
            written.append(place)
            exists = self._exists(place.key)
            value = self._value(place.key, place.info["cols"])
            for key, each in self._sessions.writes(place, value, exists=exists):
                self._prewrite(txn, key, each)
            txn.wants -= 1
            self._count_write(txn, place.key, again=bool(again))
        if not written:
            return f"txn {txn.number} finds no more rows to write"
        where = self._place(written[0].key) if len(written) == 1 else f"{len(written)} rows"
        return self._did("huge" if len(written) > 1 else "prewrite", f"txn {txn.number} prewrites {where}")

    def _free_row(self, txn: Txn, blocked: Set[int]) -> RowKey | None:
        """As `_free`: all keys that a statement on the row writes to can be locked."""
        places = self._sessions.places(
            self._use(txn).held, blocked, HANDLES if txn.kind == "huge" else self._profile.rows
        )
        careless = txn.kind == "pessimistic" or (txn.kind != "huge" and self._rand.random() < CONFLICT)
        for _ in range(LOOKS if places else 0):
            place = self._rand.choice(places)
            keys = self._sessions.keys(place)
            if all(self._is_free(txn, k) and (careless or self._newest(k) <= txn.start_ts) for k in keys):
                return place
        return None

    def _one_phase(self, txn: Txn, blocked: Set[int]) -> str:
        """Of one row. A row with a copy in another region is committed in two phases."""
        place = self._free_row(txn, blocked)
        if place is None:
            return self._decide(txn)
        keys = self._sessions.keys(place)
        if any(self._newest(key) > txn.start_ts for key in keys):
            return self._start_rollback(txn, keys, "conflict", f"meets a newer commit on {name_of(place.key)}")
        if len({self._cluster.region_of(key).region_id for key in keys}) > 1:
            txn.kind = "optimistic"
            return self._write(txn, blocked)
        txn.commit_ts = self._least_commit_ts(txn)
        rows = []
        exists = self._exists(place.key)
        for key, value in self._sessions.writes(place, self._value(place.key, place.info["cols"]), exists=exists):
            op, old = Op.DELETE if value is None else Op.PUT, self._cluster.read(key, txn.start_ts)
            self._cluster.commit_one_phase(key, Version(txn.start_ts, txn.commit_ts, op, value, old))
            rows.append(CommittedRow(txn.commit_ts, txn.start_ts, key, op, value, old))
        self._note(txn, rows)
        self.open.remove(txn)
        return self._did("one_phase", f"txn {txn.number} commits {len(rows)} keys at once, {self._place(place.key)}")
