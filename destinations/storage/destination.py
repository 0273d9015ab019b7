"""Writes the stretches of a lane to object storage in the layout of TiCDC's storage sink.

    plan    decode -> parts by folder -> bytes -> version and numbers: of the record, else of the destination -> record
    write   for each DDL of the stretch in order: schema files, then data files, then index files

What a stretch and its record determine is everything, so a retry puts the same bytes under the same names. A part that
has other bytes than the record says gets new numbers.

Data files are created, never replaced, because a request of a former owner may arrive after its lease has ended. Where
a file with other bytes has the name, its rows count: if all rows are in it, they are written. Otherwise the stretch is
planned again with the next numbers. Index files and the checkpoint are replaced; readers take the highest.

Schema files
of table versions that begin inside the stretch wait until the data of earlier versions is there, because readers apply
a version's schema file before its data and after that of the versions below.

Nothing is written for a stretch with a change that cannot be decoded or rendered: that is found when it is planned.

What a destination holds already, the schema files of tables and the newest number of each folder, is looked up where it
is needed and kept while this process writes stretch after stretch; after a gap it is forgotten, because another owner
of the lane may have written.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from destinations.protocol import (
    RECORD_MAX,
    Allowed,
    DestinationUnavailable,
    NamesTaken,
    Plan,
    Share,
    Stretch,
    together,
)
from destinations.storage.core import names
from destinations.storage.core.contents import File, refused, render_or_refuse
from destinations.storage.core.parts import Part, PartFiles, Record, digest_of, name_of, parsed, parts_of
from destinations.storage.core.schema_files import SchemaFile, of_events, of_table
from destinations.storage.files import REQUEST_S, Files, each_within, open_files, probe
from destinations.storage.settings import StorageSettings, read_settings
from destinations.uri import SinkUri
from reading.core.changes import TableChanges
from reading.core.split import order_messages
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from schemas.history import History
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput, invariant
from tistream.keyrange import KeyRange
from tistream.outbound.policy import Policy

T = TypeVar("T")
_SPILLED = "@"
_TIDY_EVERY = 1000  # notes of checkpoints


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


def open_storage(uri: SinkUri, share: Share, policy: Policy, clock: Clock | None = None) -> StorageDestination:
    """The destination of a lane. InvalidInput names a wrong option, TargetRefused what the policy refuses."""
    settings = read_settings(uri)
    return StorageDestination(settings, share, open_files(settings, clock or SystemClock(), policy))


class StorageDestination:
    """See the module and `destinations.protocol.Destination`."""

    def __init__(self, settings: StorageSettings, share: Share, files: Files) -> None:
        self._settings, self._share, self._files = settings, share, files
        self._contents = settings.contents()
        self._seen = Seen(files)
        self._taken: set[str] = set()  # names of the stretch that other files have
        self._written_upto = -1
        self._notes = 0  # of checkpoints
        self._runner = asyncio.Runner()

    # ---- protocol

    def plan(self, stretch: Stretch, record: str) -> StoragePlan:
        """Raises as the protocol says; DestinationRefused has `db`, `table`, `key`, `commit_ts` and `cause`."""
        return self._run(self._plan(stretch, record))

    def write(self, plan: Plan, allowed: Allowed) -> None:
        """Put every object of the plan. NamesTaken: it must be planned again."""
        invariant(isinstance(plan, StoragePlan), "a plan of another destination")
        assert isinstance(plan, StoragePlan)
        self._written_upto = -1
        for step in plan.steps:
            self._put_all([(file.key, file.data) for file in step.schemas.values()], allowed)
            self._create_all(step.data, allowed)
            self._put_all(list(step.index.items()), allowed)
        self._taken.clear()
        self._seen.note([file for step in plan.steps for file in step.schemas.values()], dict(plan.numbers))
        self._written_upto = plan.upto

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        """Write the file that tells readers how far everything is there."""
        self._put_all([(names.CHECKPOINT, orjson.dumps({"checkpoint-ts": ts}))], allowed)
        if self._notes % _TIDY_EVERY == 0:
            self._run(each_within([ts], self._tidy, allowed))
        self._notes += 1

    def close(self) -> None:
        """See the protocol."""
        self._runner.close()

    # ---- before a changefeed is created

    def check(self) -> Sequence[str]:
        """See the protocol: objects can be written, listed and read."""
        self._run(self._check())
        return ()

    def ranges(self, range_: KeyRange, count: int) -> Sequence[KeyRange]:
        """See the protocol; object storage takes tables, which are shared out by name."""
        raise InvalidInput("Object storage takes changes of tables, not of a keyspace.", option="sink-uri")

    async def _check(self) -> None:
        await probe(self._files, self._settings.place, names.PROBE, self._share.changefeed_id.encode())
        async for _ in self._files.list(names.spilled_folder(self._share.changefeed_id), ""):
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
        known = {} if record is None else {place.part: place for place in record.places}
        rendered = self._rendered(parts, known)
        places = await self._places(history, parts, rendered, known)
        made = Record(layout=layout, places=places)
        kept = text if record is not None and made == record else await self._keep(made, stretch)
        return await self._planned(stretch, max(stretch.after, history.start_ts), kept, parts, places, rendered)

    def _rendered(self, parts: Sequence[Part], recorded: dict[str, PartFiles]) -> list[list[File]]:
        """The files of each part. A place stays known if the part's files are those that it had."""
        render = self._contents.render
        cuts = [recorded[name].counts if (name := name_of(part)) in recorded else () for part in parts]
        rendered = render_or_refuse(render, [(part.changes, cut) for part, cut in zip(parts, cuts, strict=True)])
        for n, part in enumerate(parts):
            place = recorded.get(name_of(part))
            if place is not None and _digest(_folder(part, place.version), rendered[n]) != place.digest:
                del recorded[place.part]
                rendered[n] = render(part.changes, ())
        return rendered

    def _decoded(self, history: History, stretch: Stretch) -> list[TableChanges]:
        decoding = decode_rows(history, stretch.rows, Scope(tenant=self._share.tenant))
        if decoding.quarantined:
            raise together(
                refused(bad.database, bad.table, bad.key, bad.commit_ts, f"{bad.cause}, column {bad.column}")
                for bad in decoding.quarantined
            )
        return order_messages(decoding.changes, split=self._contents.splits_updates)

    async def _places(
        self,
        history: History,
        parts: Sequence[Part],
        rendered: Sequence[Sequence[File]],
        recorded: Mapping[str, PartFiles],
    ) -> list[PartFiles]:
        """Where the parts go: where they were, else after what is there."""
        new = [part for part in parts if name_of(part) not in recorded]
        await self._seen.look_up_schemas(names.meta_folder(part.table.db, part.table.name) for part in new)
        places = list[PartFiles]()
        for part, files in zip(parts, rendered, strict=True):
            place = recorded.get(name_of(part))
            if place is None:
                version = self._seen.version(part, history.start_ts)
                digest, cuts = _digest(_folder(part, version), files), tuple(count for count, _ in files)
                place = PartFiles(part=name_of(part), version=version, counts=cuts, digest=digest)
            places.append(place)
        folders = [_folder(part, place.version) for part, place in zip(parts, places, strict=True)]
        unsettled = {folder for folder, place in zip(folders, places, strict=True) if self._moves(folder, place)}
        await self._seen.look_up_numbers(unsettled)
        return self._numbered(folders, places, unsettled)

    def _moves(self, folder: str, place: PartFiles) -> bool:
        """Whether files of the part need other numbers, or have none yet."""
        return not place.numbers or any(self._name(folder, number) in self._taken for number in place.numbers)

    def _numbered(self, folders: Sequence[str], places: Sequence[PartFiles], unsettled: set[str]) -> list[PartFiles]:
        """The places with all numbers. From the first name of a folder that is taken, all are new: files are read in
        the order of their numbers."""
        highest = {folder: self._seen.newest(folder) for folder in unsettled}
        for folder, place in zip(folders, places, strict=True):
            if folder in unsettled:
                highest[folder] = max(highest[folder], *place.numbers, 0)
        moved, made = set[str](), list[PartFiles]()
        for folder, place in zip(folders, places, strict=True):
            numbers = list[int]()
            for n in range(len(place.counts)):
                number = place.numbers[n] if place.numbers else 0
                if number and self._name(folder, number) in self._taken:
                    moved.add(folder)
                if not number or folder in moved:
                    number = highest[folder] = highest[folder] + 1
                numbers.append(number)
            made.append(replace(place, numbers=tuple(numbers)))
        return made

    def _name(self, folder: str, number: int) -> str:
        return f"{folder}/{names.data_file(number, self._settings.extension)}"

    async def _planned(
        self,
        stretch: Stretch,
        before: int,
        record: str,
        parts: Sequence[Part],
        places: Sequence[PartFiles],
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
            for number, (_, data) in zip(place.numbers, files, strict=True):
                step.data.append((self._name(folder, number), data))
            numbers[folder] = max(numbers.get(folder, 0), *place.numbers)
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

    async def _recorded(self, text: str) -> Record | None:
        """None for one that was kept as an object, and is no longer there: the stretch is planned again."""
        if not text.startswith(_SPILLED):
            return parsed(text)
        stored = await self._files.get(text.removeprefix(_SPILLED))
        return None if stored is None else parsed(stored)

    async def _keep(self, record: Record, stretch: Stretch) -> str:
        """The record, or the name of an object that has it."""
        text = record.text()
        if len(text) <= RECORD_MAX:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        key = names.spilled_record(self._share.changefeed_id, self._share.number, stretch.upto, digest)
        await self._files.put(key, text.encode())
        return _SPILLED + key

    async def _tidy(self, ts: int) -> None:
        """Remove the kept records of stretches that end at or below the changefeed's checkpoint. A lane's own may be
        that of another one too, which was divided from it and is behind."""
        with suppress(DestinationUnavailable):  # the next one removes them
            old = [key async for key in self._files.list(names.spilled_folder(self._share.changefeed_id), "")]
            for key in old:
                if names.spilled_upto(key) <= ts:
                    await self._files.delete(key)

    # ---- requests

    def _put_all(self, objects: Iterable[tuple[str, bytes | memoryview]], allowed: Allowed) -> None:
        async def put(item: tuple[str, bytes | memoryview]) -> None:
            await self._files.put(*item)

        self._run(each_within(objects, put, allowed))

    def _create_all(self, files: Sequence[tuple[str, bytes | memoryview]], allowed: Allowed) -> None:
        """Create data files. NamesTaken when something else has the name of one."""

        there = list[tuple[str, bytes | memoryview]]()

        async def create(item: tuple[str, bytes | memoryview]) -> None:
            if not await self._files.create(*item):
                there.append(item)

        async def compare(item: tuple[str, bytes | memoryview]) -> None:
            key, data = item
            stored = await self._files.get(key)
            if stored is None or not (stored == data or self._contents.holds(stored, data)):
                self._taken.add(key)

        self._run(each_within(files, create, allowed))
        self._run(each_within(there, compare, allowed, at_once=1))  # each has two files in memory
        if not self._taken.isdisjoint(key for key, _ in files):
            self._seen.forget()
            raise NamesTaken(sorted(self._taken)[0])

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


def _folder(part: Part, version: int) -> str:
    return names.data_folder(part.table.db, part.table.name, version, part.partition, part.date)


def _digest(folder: str, files: Sequence[File]) -> str:
    return digest_of(folder, [data for _, data in files])


def _step(steps: dict[int, _Step], version: int, before: int) -> _Step:
    """The step of what begins at this table version; all that began at `before` or earlier are one."""
    return steps.setdefault(version if version > before else 0, _Step())


_KEPT_MAX = 100_000


class Seen:
    """The knowledge of one lane."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._schemas: dict[str, set[tuple[int, int]]] = {}  # by folder: (version, hash)
        self._numbers: dict[str, int] = {}  # by folder

    def forget(self) -> None:
        """Look up everything again."""
        self._schemas.clear()
        self._numbers.clear()

    async def look_up_schemas(self, folders: Iterable[str]) -> None:
        """Know the schema files of these folders."""
        unknown = sorted({folder for folder in folders if folder not in self._schemas})
        await each_within(unknown, self._list_schemas, _ample)

    async def look_up_numbers(self, folders: Iterable[str]) -> None:
        """Know the newest data files of these folders."""
        unknown = sorted({folder for folder in folders if folder not in self._numbers})
        await each_within(unknown, self._find_number, _ample)

    def version(self, part: Part, otherwise: int) -> int:
        """The number of the part's table version: the commit_ts of its DDL. Where the history does not have that any
        more, the newest one with these columns that is there, else when TiDB last changed the table, else
        `otherwise`."""
        if part.version_ts:
            return part.version_ts
        digest = of_table(part.table, 0).digest
        there = self._schemas[names.meta_folder(part.table.db, part.table.name)]
        known = [version for version, of in there if of == digest and version < part.first_ts]
        return max(known, default=part.table.update_ts or otherwise)

    def has(self, file: SchemaFile) -> bool:
        """Whether the schema file is there."""
        return (file.version, file.digest) in self._schemas[file.folder]

    def newest(self, folder: str) -> int:
        """The number of the newest data file; 0 = there is none."""
        return self._numbers[folder]

    def note(self, schemas: Iterable[SchemaFile], numbers: dict[str, int]) -> None:
        """These are there now."""
        if len(self._schemas) + len(self._numbers) > _KEPT_MAX:
            self.forget()
        for file in schemas:
            if file.folder in self._schemas:
                self._schemas[file.folder].add((file.version, file.digest))
        self._numbers |= numbers

    async def _list_schemas(self, folder: str) -> None:
        found = [names.schema_of(key.rpartition("/")[2]) async for key in self._files.list(folder, "")]
        self._schemas[folder] = {each for each in found if each is not None}

    async def _find_number(self, folder: str) -> None:
        index = await self._files.get(names.index_file(folder))
        newest = index.decode("utf-8", "replace").strip() if index else ""
        found = [names.number_of(newest)]
        async for key in self._files.list(folder, names.listed_after(folder, newest)):
            above, _, name = key.rpartition("/")
            if above == folder:
                found.append(names.number_of(name))
        self._numbers[folder] = max(found)


def _ample() -> float:
    return REQUEST_S
