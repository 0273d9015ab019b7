"""Mutants of exports and restores: what a restored catalog names must be there, and who ran before must do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import bindparam, literal, select

from simulator.dst.mutants import broken, register, replaced
from tistream.catalog.database import tables
from tistream.catalog.log import objects
from tistream.catalog.work import stores

broken(
    "generation-not-checked (lost): a write transaction looks neither at the generation nor at the database",
    ("tistream.catalog.database.engine:admit_writer", lambda _conn, _mine, _identity: None),
)
broken(
    "identity-not-checked (lost): a process writes to another database that is at the address of its own",
    ("tistream.catalog.database.generation:_admit", "if there != identity:", "if False:"),
)
broken(
    "bucket-not-looked-at (lost): no process sees the generation of a restore in the bucket",
    ("tistream.objectstore.generations:GenerationWatch.look", lambda _watch: None),
)
broken(
    "epochs-not-raised (lost): a restored catalog gives out epochs that were given out since its export",
    ("tistream.exports.restore:raise_numbers", "column + EPOCH_STRIDE * generations", "column"),
)
broken(
    "incarnations-not-raised (lost): a restored catalog gives out incarnations of pushers again",
    ("tistream.exports.restore:adopt_stores", lambda *_: None),
)
broken(
    "rows-of-before-kept (lost): a restore leaves what others wrote to its empty database",
    ("tistream.exports.restore:remove_rows", lambda _catalog: None),
)
broken(
    "revoked-key-back (lost): a restore leaves out the revocations of the journal",
    ("tistream.exports.restore:replay", "EntryKind.KEY, EntryKind.REVOCATION", "EntryKind.KEY"),
)
broken(
    "key-before-revocation (lost): a restore takes the first entry of a key for its state",
    (
        "tistream.exports.replay:replay_key",
        'conn.execute(_FORWARD, {"asked_key": row["key_id"], **since})',
        "pass",
    ),
)
broken(
    "registration-left-out (lost): a restore leaves out the registrations of the journal",
    ("tistream.exports.restore:replay", "_of(entries, EntryKind.TENANT)", "()"),
)
broken(
    "deletion-left-out (lost): a restore leaves out the deletions of the journal",
    ("tistream.exports.restore:replay", "_of(entries, EntryKind.DELETION)", "()"),
)
broken(
    "repeat-without-entry (lost): a repeated revocation puts no entry, and the first may have died before it did",
    (
        "simulator.dst.deeds:revoke_key",
        "        _note(deed, key_id)\n        if",
        "        if",
        "rowcount == 1:",
        "rowcount == 1:\n            _note(deed, key_id)",
    ),
)


@register("inputs-gone-early (lost): a compaction's input is deleted before an export has the compaction")
def inputs_gone_early() -> Iterator[None]:
    o = tables.objects.c
    states = [o.object_key.in_(bindparam("asked_keys", expanding=True)), o.state == objects.ObjectState.DEAD]
    with (
        replaced(objects, "_SUPERSEDED", objects._REPLACED.where(~objects._LEASED)),
        replaced(objects, "_DELETABLE", select(o.object_key).where(*states)),
    ):
        yield


@register("files-gone-early (lost): a batch file is deleted before an export has the decision")
def files_gone_early() -> Iterator[None]:
    with replaced(stores, "_RECLAIMS", stores._RECLAIMED.add_columns(literal(True).label("deletable"))):
        yield


broken(
    "confirmed-by-the-lost (lost_keys): a worker that was paused writes on, confirmed by the catalog that was lost",
    ("replicator.lane_run:LaneRun._ask", "self._look_first()", "pass"),
)
broken(
    "lanes-ahead-of-keys (lost_keys): lanes of keys continue where the export has them, although they may be cut anew",
    ("tistream.catalog.work.renumber:raise_numbers", "_lower_key_lanes(conn)", "pass"),
)
broken(
    "snapshot-of-another (lost_keys): an export that has begun takes the rows of the database made anew at the address",
    ("tistream.catalog.database.dump:snapshot", "if catalog.generation is not None:", "if False:"),
)
