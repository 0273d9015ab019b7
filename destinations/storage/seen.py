"""What a destination holds already: the schema files of tables, and the newest number of each folder.

It is looked up where it is needed and kept while this process writes stretch after stretch; after a gap it is
forgotten, because another owner of the lane may have written.
"""

from __future__ import annotations

from collections.abc import Iterable

from destinations.storage.core import names
from destinations.storage.core.parts import Part
from destinations.storage.core.schema_files import SchemaFile, of_table
from destinations.storage.files import REQUEST_S, Files, each_within

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
