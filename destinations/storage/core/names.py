"""Names of the objects of a storage sink.

    {schema}/{table}/{table version}/{partition}/{date}/CDC000001.json     changes
    {schema}/{table}/{table version}/{partition}/{date}/meta/CDC.index     the newest of them
    {schema}/{table}/meta/schema_{table version}_{hash}.json               a table version, or a DDL of the table
    {schema}/meta/schema_{table version}_{hash}.json                       a DDL of the database
    metadata                                                               the checkpoint

Names of databases and tables are unchanged, except for characters that would leave the folder: slashes,
backslashes, `%`, control characters and a leading dot are written as `%` and two digits. So is the first letter of a
database `metadata`, because a folder cannot have the name of a file.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tistream.ts import LOGICAL_BITS

CHECKPOINT = "metadata"
PROBE = ".tistream-check"
DATE_SEPARATORS = ("none", "year", "month", "day")

_ESCAPED = re.compile(r"[/\\%\x00-\x1f\x7f]|^\.")
_DATA = re.compile(r"CDC(\d{6,18})\.\w+")
_SCHEMA = re.compile(r"schema_(\d{1,20})_(\d{10})\.json")
_UNITS = {"year": "Y", "month": "M", "day": "D"}
_ORDERED_MAX = 999_999  # names of later files have more digits and sort before


def meta_folder(schema: str, table: str = "") -> str:
    """Where the schema files of a table are, or those of a database."""
    return f"{_table_folder(schema, table)}/meta" if table else f"{_schema_folder(schema)}/meta"


def data_folder(schema: str, table: str, version: int, partition: int, date: str) -> str:
    """The folder of data files. `partition` 0: none; `date` may be empty."""
    parts = [_table_folder(schema, table), str(version), str(partition) if partition else "", date]
    return "/".join(part for part in parts if part)


def schema_file(folder: str, version: int, digest: int) -> str:
    return f"{folder}/schema_{version}_{digest:010d}.json"


def data_file(number: int, extension: str) -> str:
    """The name of a data file in its folder."""
    return f"CDC{number:06d}.{extension}"


def index_file(folder: str) -> str:
    return f"{folder}/meta/CDC.index"


def spilled_record(changefeed: str, lane: int, upto: int, digest: str) -> str:
    """A plan's record that is too long for the catalog."""
    return f"{spilled_folder(changefeed)}/{lane}/{upto:020d}-{digest}"


def spilled_folder(changefeed: str) -> str:
    return f".tistream/{_escaped(changefeed)}"


def spilled_upto(key: str) -> int:
    """The end of the stretch of such a record."""
    return int(key.rpartition("/")[2].partition("-")[0])


def number_of(name: str) -> int:
    """The number of a data file; 0 for another name."""
    match = _DATA.fullmatch(name)
    return int(match[1]) if match else 0


def listed_after(folder: str, newest: str) -> str:
    """The key after which a listing of the folder has every data file that is newer than this one."""
    return f"{folder}/{newest}" if 0 < number_of(newest) < _ORDERED_MAX else f"{folder}/"


def schema_of(name: str) -> tuple[int, int] | None:
    """(table version, hash) of a schema file; None for another name."""
    match = _SCHEMA.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def dates(commit_ts: npt.NDArray[np.uint64], separator: str) -> npt.NDArray[np.datetime64] | None:
    """The date of each commit, in UTC; None without dates. Its text is the name of the folder."""
    unit = _UNITS.get(separator)
    if unit is None:
        return None
    return (commit_ts >> np.uint64(LOGICAL_BITS)).astype("datetime64[ms]").astype(f"datetime64[{unit}]")


def _schema_folder(schema: str) -> str:
    name = _escaped(schema)
    return f"%{ord(name[0]):02X}{name[1:]}" if name == CHECKPOINT else name


def _table_folder(schema: str, table: str) -> str:
    return f"{_schema_folder(schema)}/{_escaped(table)}"


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", name)
