"""Finds the rows of refused changes in a stretch, and takes rows out of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from destinations.protocol import DestinationRefused, Stretch
from reading.core import page_rows
from tistream.codec.raw.keys import user_keys

Place = tuple[str, int]
"""(key in hex, commit_ts) of a change: the user's key of an entry, the stored key of a row."""
Refused = tuple[DestinationRefused, pa.Table]
"""(why, the one row)"""


def rows_at(rows: pa.Table, places: Collection[Place], *, is_keyspace: bool) -> npt.NDArray[np.int64]:
    """The numbers of the rows of these changes, which rise."""
    stamps = rows["commit_ts"].to_numpy()
    at = np.flatnonzero(np.isin(stamps, np.array([ts for _, ts in places], np.uint64)))
    if not len(at):
        return at
    keys, wanted = _keys(rows, is_keyspace=is_keyspace), {(bytes.fromhex(key), ts) for key, ts in places}
    return np.array([n for n in at.tolist() if (keys[n].as_py(), int(stamps[n])) in wanted], np.int64)


def without(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.Table:
    """The rows but these."""
    kept = np.ones(rows.num_rows, np.bool_)
    kept[at] = False
    return page_rows.only(rows, kept)


def split_off(stretch: Stretch, refusals: Sequence[DestinationRefused]) -> tuple[Stretch, list[Refused]]:
    """(the stretch without the refused changes, each of them with its row). No change is found unless each refusal
    names one of the stretch."""
    is_keyspace = stretch.history is None
    places = _places(stretch, refusals)
    at = rows_at(stretch.rows, places, is_keyspace=is_keyspace)
    if len(at) < len(places):
        return stretch, []
    keys, stamps = _keys(stretch.rows, is_keyspace=is_keyspace), stretch.rows["commit_ts"]
    found = [(places[keys[n].as_py().hex(), stamps[n].as_py()], stretch.rows.slice(n, 1)) for n in at.tolist()]
    return replace(stretch, rows=without(stretch.rows, at), undecodable=()), found


def newest_ts(rows: pa.Table, keys: Collection[bytes]) -> dict[str, int]:
    """By key in hex: the commit_ts of the newest change of these keys of a keyspace, which is the one that is
    written."""
    own = user_keys(rows["key"].combine_chunks())
    at = np.flatnonzero(pc.is_in(own, pa.array(sorted(keys), own.type)).to_numpy(zero_copy_only=False))
    return {own[n].as_py().hex(): rows["commit_ts"][n].as_py() for n in at.tolist()}  # rows are in commit order


def _places(stretch: Stretch, refusals: Sequence[DestinationRefused]) -> dict[Place, DestinationRefused]:
    """By place; two halves of an update are one change. A change that the stretch does not have is at 0."""
    unplaced = {bytes.fromhex(str(e.facts["key"])) for e in refusals if "commit_ts" not in e.facts and "key" in e.facts}
    newest = newest_ts(stretch.rows, unplaced) if unplaced else {}
    found: dict[Place, DestinationRefused] = {}
    for refusal in refusals:
        key = str(refusal.facts.get("key", ""))
        found.setdefault((key, int(str(refusal.facts.get("commit_ts", newest.get(key, 0))))), refusal)
    return found


def _keys(rows: pa.Table, *, is_keyspace: bool) -> pa.Array:
    keys = rows["key"].combine_chunks()
    return user_keys(keys) if is_keyspace else keys
