"""Writes the stretches of a lane to object storage in the layout of TiCDC's storage sink.

    plan    decode -> parts by folder -> version and numbers: of the record, else of the destination -> bytes, record
    write   for each DDL of the stretch in order: schema files, then data files, then index files

What a stretch and its record determine is everything, so a retry puts the same bytes under the same names. Schema files
of table versions that begin inside the stretch wait until the data of earlier versions is there, because readers apply
a version's schema file before its data and after that of the versions below.

Nothing is written for a stretch with a change that cannot be decoded or rendered: that is found when it is planned.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from destinations.protocol import RECORD_MAX, Allowed, DestinationUnavailable, Plan, Share, Stretch, together
from destinations.storage.core import names
from destinations.storage.core.contents import File, refused, render_or_refuse
from destinations.storage.core.parts import Part, parts_of
from destinations.storage.core.record import Place, Record, parsed
from destinations.storage.core.schema_files import SchemaFile, of_events, of_table
from destinations.storage.files import Files, each_within, open_files, probe
from destinations.storage.seen import Seen
from destinations.storage.settings import StorageSettings, read_settings
from destinations.uri import SinkUri
from reading.core.changes import TableChanges
from reading.core.split import order_messages
from reading.decode import decode_rows
from reading.scope import Scope
from schemas.history import History
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput, invariant
from tistream.keyrange import KeyRange

T = TypeVar("T")
_SPILLED = "@"


@dataclass(slots=True)
class _Step:
    """Objects to put, one kind after the other."""

    schemas: dict[str, SchemaFile] = field(default_factory=dict)
    data: list[tuple[str, bytes | memoryview]] = field(default_factory=list)
    index: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """The objects of a stretch."""

    record: str
    rows: int  #: messages: an update that is split counts twice
    size: int  #: of the data files
    upto: int
    steps: Sequence[_Step]
    numbers: Mapping[str, int]  #: by folder: the newest file then


def open_storage(uri: SinkUri, share: Share, clock: Clock | None = None) -> StorageDestination:
    """The destination of a lane. InvalidInput names a wrong option; DestinationUnavailable for a folder that cannot be
    made."""
    settings = read_settings(uri)
    return StorageDestination(settings, share, open_files(settings, clock or SystemClock()))


class StorageDestination:
    """See the module and `destinations.protocol.Destination`."""

    def __init__(self, settings: StorageSettings, share: Share, files: Files) -> None:
        self._settings, self._share, self._files = settings, share, files
        self._contents = settings.contents()
        self._seen = Seen(files)
        self._written_upto = -1
        self._runner = asyncio.Runner()

    # ---- protocol

    def plan(self, stretch: Stretch, record: str) -> StoragePlan:
        """Raises as the protocol says; DestinationRefused has `db`, `table`, `key`, `commit_ts` and `cause`."""
        return self._run(self._plan(stretch, record))

    def write(self, plan: Plan, allowed: Allowed) -> None:
        """Put every object of the plan."""
        invariant(isinstance(plan, StoragePlan), "a plan of another destination")
        assert isinstance(plan, StoragePlan)
        self._written_upto = -1
        for step in plan.steps:
            self._put_all([(file.key, file.data) for file in step.schemas.values()], allowed)
            self._put_all(step.data, allowed)
            self._put_all(list(step.index.items()), allowed)
        self._seen.note([file for step in plan.steps for file in step.schemas.values()], dict(plan.numbers))
        self._written_upto = plan.upto

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        """Write the file that tells readers how far everything is there."""
        self._put_all([(names.CHECKPOINT, orjson.dumps({"checkpoint-ts": ts}))], allowed)

    def close(self) -> None:
        """See the protocol."""
        self._runner.close()

    # ---- before a changefeed is created

    def check(self) -> Sequence[str]:
        """See the protocol: objects can be written, listed and read."""
        self._run(self._check())
        return ()

    def ranges(self, wanted: KeyRange, count: int) -> Sequence[KeyRange]:
        """See the protocol; object storage takes tables, which are shared out by name."""
        raise InvalidInput("Object storage takes changes of tables, not of a keyspace.", option="sink-uri")

    async def _check(self) -> None:
        await probe(self._files, self._settings.place, names.PROBE, self._share.changefeed_id.encode())
        async for _ in self._files.list(names.spilled_folder(self._share.changefeed_id, 0), ""):
            break

    # ---- planning

    async def _plan(self, stretch: Stretch, text: str) -> StoragePlan:
        history = stretch.history
        if history is None:
            raise InvalidInput("Object storage takes changes of tables, not of a keyspace.", option="sink-uri")
        if text or stretch.after != self._written_upto:
            self._seen.forget()
        record = await self._recorded(text) if text else None
        layout = record.layout if record is not None else self._settings.layout
        parts = parts_of(history, self._decoded(history, stretch), layout)
        if record is not None and len(record.places) != len(parts):
            record = None  # the filters of the changefeed were changed between the tries
        places = record.places if record is not None else await self._places(history, parts)
        rendered = render_or_refuse(
            self._contents.render, [(part.changes, place.counts) for part, place in zip(parts, places, strict=True)]
        )
        numbered = self._numbered(parts, places, rendered)
        kept = text if record is not None else await self._keep(Record(layout=layout, places=numbered), stretch)
        return await self._planned(stretch, max(stretch.after, history.start_ts), kept, parts, numbered, rendered)

    def _decoded(self, history: History, stretch: Stretch) -> list[TableChanges]:
        decoding = decode_rows(history, stretch.rows, Scope(tenant=self._share.tenant))
        if decoding.quarantined:
            raise together(
                refused(bad.database, bad.table, bad.key, bad.commit_ts, f"{bad.cause}, column {bad.column}")
                for bad in decoding.quarantined
            )
        return order_messages(decoding.changes, split=self._contents.splits_updates)

    async def _places(self, history: History, parts: Sequence[Part]) -> list[Place]:
        """Where the parts go, after what is there."""
        await self._seen.look_up_schemas(names.meta_folder(part.table.db, part.table.name) for part in parts)
        versions = [self._seen.version(part, history.start_ts) for part in parts]
        folders = [_folder(part, version) for part, version in zip(parts, versions, strict=True)]
        await self._seen.look_up_numbers(folders)
        return [Place(version=version) for version in versions]

    def _numbered(
        self, parts: Sequence[Part], places: Sequence[Place], rendered: Sequence[Sequence[File]]
    ) -> list[Place]:
        """The places with the numbers and the cuts of these files."""
        last: dict[str, int] = {}
        found = []
        for part, place, files in zip(parts, places, rendered, strict=True):
            folder = _folder(part, place.version)
            first = place.first or (last[folder] if folder in last else self._seen.newest(folder)) + 1
            last[folder] = first + len(files) - 1
            found.append(Place(version=place.version, first=first, counts=tuple(count for count, _ in files)))
        return found

    async def _planned(
        self,
        stretch: Stretch,
        before: int,
        record: str,
        parts: Sequence[Part],
        places: Sequence[Place],
        rendered: Sequence[Sequence[File]],
    ) -> StoragePlan:
        steps: dict[int, _Step] = {}
        numbers: dict[str, int] = {}
        of_rows = {
            (id(part.table), place.version): of_table(part.table, place.version)
            for part, place in zip(parts, places, strict=True)
        }
        await self._seen.look_up_schemas({file.folder for file in of_rows.values()})
        for file in of_rows.values():
            if not self._seen.has(file):
                _step(steps, file.version, before).schemas[file.key] = file
        for file in of_events(stretch.events):
            _step(steps, file.version, before).schemas[file.key] = file
        for part, place, files in zip(parts, places, rendered, strict=True):
            step, folder = _step(steps, place.version, before), _folder(part, place.version)
            for number, (_, data) in enumerate(files, place.first):
                step.data.append((f"{folder}/{names.data_file(number, self._settings.extension)}", data))
            numbers[folder] = place.first + len(files) - 1
            step.index[names.index_file(folder)] = (
                names.data_file(numbers[folder], self._settings.extension).encode() + b"\n"
            )
        return StoragePlan(
            record=record,
            rows=sum(len(part.changes) for part in parts),
            size=sum(len(data) for files in rendered for _, data in files),
            upto=stretch.upto,
            steps=[steps[ts] for ts in sorted(steps)],
            numbers=numbers,
        )

    # ---- records

    async def _recorded(self, text: str) -> Record:
        if not text.startswith(_SPILLED):
            return parsed(text)
        found = await self._files.get(text.removeprefix(_SPILLED))
        if found is None:
            raise DestinationUnavailable(f"{text.removeprefix(_SPILLED)} is missing in {self._settings.place}")
        return parsed(found)

    async def _keep(self, record: Record, stretch: Stretch) -> str:
        """The record, or the name of an object that has it. Those of stretches that are behind are removed."""
        text = record.text()
        if len(text) <= RECORD_MAX:
            return text
        feed, lane = self._share.changefeed_id, self._share.number
        old = [key async for key in self._files.list(names.spilled_folder(feed, lane), "")]
        for key in old:
            if names.spilled_upto(key) <= stretch.after:
                await self._files.delete(key)
        key = names.spilled_record(feed, lane, stretch.upto, hashlib.sha256(text.encode()).hexdigest()[:32])
        await self._files.put(key, text.encode())
        return _SPILLED + key

    # ---- requests

    def _put_all(self, objects: Iterable[tuple[str, bytes | memoryview]], allowed: Allowed) -> None:
        async def put(item: tuple[str, bytes | memoryview]) -> None:
            await self._files.put(*item)

        self._run(each_within(objects, put, allowed))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


def _folder(part: Part, version: int) -> str:
    return names.data_folder(part.table.db, part.table.name, version, part.partition, part.date)


def _step(steps: dict[int, _Step], version: int, before: int) -> _Step:
    """The step of what begins at this table version; all that began at `before` or earlier are one."""
    return steps.setdefault(version if version > before else 0, _Step())
