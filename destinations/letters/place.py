"""The folder or bucket of a changefeed's dead letters: `file:///FOLDER` or `s3://BUCKET/PREFIX?region=...`.

A letter that is there is left as it is: a repeated try writes it once, with the bytes of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from destinations.protocol import Allowed, DeadLetter, DeadLetterUnavailable, DestinationUnavailable
from destinations.storage.core.names import PROBE
from destinations.storage.files import Files, each_within, open_files, probe
from destinations.storage.settings import FilePlace
from destinations.uri import SinkUri, parse_sink_uri
from tistream.catalog.work.core.location import Files as Location
from tistream.clock import Clock
from tistream.errors import InvalidInput
from tistream.outbound.policy import Policy

T = TypeVar("T")
_SCHEMES = ("s3", "file")


class LetterFiles:
    """See the module and `destinations.protocol.DeadLetters`."""

    def __init__(self, files: Files, place: str) -> None:
        self._files, self._place = files, place
        self._runner = asyncio.Runner()

    def check(self, changefeed_id: str) -> None:
        """Whether it can be written and read. DeadLetterUnavailable."""
        self._run(probe(self._files, self._place, PROBE, changefeed_id.encode()))

    def keep(self, letters: Sequence[DeadLetter], allowed: Allowed) -> None:
        """See the protocol."""

        async def put(letter: DeadLetter) -> None:
            await self._files.create(letter.name, letter.data)

        self._run(each_within(letters, put, allowed))

    def close(self) -> None:
        """See the protocol."""
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with _as_letters():
            return self._runner.run(work)


def open_letters(uri: str, clock: Clock, policy: Policy) -> LetterFiles:
    """The place of this URI. InvalidInput names a wrong option, TargetRefused what the policy refuses."""
    place = FilePlace.of(_parsed(uri))
    with _as_letters():
        return LetterFiles(open_files(place, clock, policy), place.place)


def check_letters(uri: str, sink: SinkUri, changefeed_id: str, clock: Clock, policy: Policy) -> None:
    """Reach the place before the changefeed starts. InvalidInput also when it is the destination itself, or within it,
    where readers of the destination would find letters."""
    location, taken = _parsed(uri), sink.place.rstrip("/") + "/"
    if f"{location.place.rstrip('/')}/".startswith(taken):
        raise InvalidInput("The dead letters need a place outside the destination.", option=location.option)
    opened = open_letters(uri, clock, policy)
    try:
        opened.check(changefeed_id)
    finally:
        opened.close()


def letters_location(uri: str) -> Location:
    """Where the letters are, to compare with destinations."""
    location = _parsed(uri)
    endpoint = location.options.get("endpoint", "")
    return Location.of(scheme=location.scheme, bucket=location.authority, path=location.path, endpoint=endpoint)


def _parsed(uri: str) -> SinkUri:
    return parse_sink_uri(uri, option="dead-letter", schemes=_SCHEMES)


@contextmanager
def _as_letters() -> Iterator[None]:
    """What a destination would report is reported of the dead letters."""
    try:
        yield
    except DestinationUnavailable as error:
        raise DeadLetterUnavailable(f"Dead letters cannot be written: {error.message}", **error.facts) from error
