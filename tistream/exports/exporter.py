"""Exports the catalog into the bucket: the job of the leading meta server.

    begin (catalog) -> snapshot -> pieces, manifest -> read back -> look for a newer generation -> verified (catalog)

The manifest is put before the last look, and a restore opens its generation before it lists the exports. So either the
look sees the new generation, and nothing is deleted on the strength of this export, or the restore sees the export.

Pieces are shared between the exports of one leader: each has a folder of its own, so none names what another deletes.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from tistream.catalog.database.dump import Snapshot, exported_tables, snapshot
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import CatalogState
from tistream.catalog.work.exports import begin_export, export_status, forget_exports, verify_export
from tistream.errors import CorruptObject, ObjectNotFound, invariant
from tistream.exports.journal import prune
from tistream.exports.pieces import Manifest, Piece, Sealing, TablePieces, cut, encode_rows
from tistream.objectstore.generations import GenerationWatch
from tistream.objectstore.layout import ExportKey, ExportPieceKey, exports_prefix, parse
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

KEEP = 12
_PIECES_PREFIX = "exports/pieces/"


class Exporter:
    """The exports of one process. Used from one thread."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        watch: GenerationWatch,
        *,
        sealing: Sealing | None = None,
        keep: int = KEEP,
    ) -> None:
        """`keep`: exports; older ones are deleted."""
        self._catalog, self._store, self._watch = catalog, store, watch
        self._sealing, self._keep = sealing or Sealing(), keep
        self._leader_epoch = 0
        self._kept: dict[int, frozenset[str]] = {}  # export -> digests of its pieces; of this leader

    def step(self, leader_epoch: int) -> int:
        """Make one export; its number. Fenced when another leader was elected, or the catalog was restored."""
        self._watch.require()
        if leader_epoch != self._leader_epoch:
            self._leader_epoch, self._kept = leader_epoch, {}
        number = begin_export(self._catalog, leader_epoch=leader_epoch, key_name=self._sealing.name)
        with snapshot(self._catalog) as state:
            manifest = self._write(state, number)
        key = ExportKey(generation=manifest.generation, leader_epoch=leader_epoch, export_no=number)
        sealed = self._sealing.seal(manifest.encode(), str(key))
        self._store.put(str(key), sealed)
        if self._store.get(str(key)) != sealed:
            raise CorruptObject("the manifest of an export is not as it was written", key=str(key))
        self._watch.look()
        facts = {"snapshot_ms": manifest.snapshot_ms, "rows": manifest.rows, "size": manifest.size}
        verify_export(self._catalog, number, str(key), leader_epoch=leader_epoch, **facts)
        self._kept[number] = frozenset(piece.digest for table in manifest.tables for piece in table.pieces)
        log.info("catalog exported", export=number, rows=manifest.rows, bytes=manifest.size)
        if export_status(self._catalog).state is CatalogState.READY:
            self._prune(key)
        return number

    def _write(self, state: Snapshot, number: int) -> Manifest:
        there = {digest for digests in self._kept.values() for digest in digests}
        tables = []
        for table in exported_tables():
            pieces = []
            for rows in cut(table, state.rows(table)):
                data = encode_rows(table, rows)
                digest = self._sealing.digest(data)
                if digest not in there:
                    self._put(digest, data)
                    there.add(digest)
                pieces.append(Piece(digest=digest, rows=len(rows), size=len(data)))
            columns = tuple(column.name for column in table.columns)
            tables.append(TablePieces(name=table.name, columns=columns, pieces=tuple(pieces)))
        invariant(state.revision is not None, "a catalog that is exported has tables")
        return Manifest(
            generation=self._watch.generation,
            leader_epoch=self._leader_epoch,
            export_no=number,
            snapshot_ms=state.at_ms,
            release=str(self._catalog.release),
            revision=str(state.revision),
            tables=tuple(tables),
        )

    def _put(self, digest: str, data: bytes) -> None:
        """Put a piece, and read it back: it is what a restore will depend on."""
        sealing, generation = self._sealing, self._watch.generation
        key = str(ExportPieceKey(generation=generation, leader_epoch=self._leader_epoch, digest=digest))
        if sealing.is_on:
            try:  # an earlier try under another nonce
                if sealing.digest(sealing.unseal(self._store.get(key), key)) == digest:
                    return
            except ObjectNotFound:
                pass
        self._store.put(key, sealing.seal(data, key))
        if sealing.digest(sealing.unseal(self._store.get(key), key)) != digest:
            raise CorruptObject("a piece of an export is not as it was written", key=key)

    def _prune(self, newest: ExportKey) -> None:
        """Delete all but the newest exports, the pieces that none of the rest names, and the entries of the journal
        that all of them have."""
        manifests = list(self._manifests())
        kept, dropped = manifests[-self._keep :], manifests[: -self._keep]
        prune(self._store, kept[0])
        for key in dropped:
            self._store.delete(str(key))
            if (key.generation, key.leader_epoch) == (newest.generation, newest.leader_epoch):
                self._kept.pop(key.export_no, None)
        if not dropped:
            return
        forget_exports(self._catalog, below=min(key.export_no for key in kept))
        own = {digest for digests in self._kept.values() for digest in digests}
        of_others = {(key.generation, key.leader_epoch) for key in kept}
        mine = newest.generation, newest.leader_epoch
        for info in self._store.list(_PIECES_PREFIX):
            piece = parse(info.key)
            if not isinstance(piece, ExportPieceKey) or (piece.generation, piece.leader_epoch) > mine:
                continue
            folder = piece.generation, piece.leader_epoch
            if piece.digest not in own if folder == mine else folder not in of_others:
                self._store.delete(info.key)

    def _manifests(self) -> Iterator[ExportKey]:
        for info in self._store.list(exports_prefix()):
            key = parse(info.key)
            if isinstance(key, ExportKey):
                yield key
