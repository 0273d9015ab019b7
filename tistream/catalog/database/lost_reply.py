"""Outcome of transactions whose reply was lost.

A transaction that fails before COMMIT did not happen (`CatalogUnavailable.determinate`). When the reply to its COMMIT
is lost, its outcome is unknown until the caller reads back what the transaction writes:

    it is there                       the transaction took effect
    the guard of the transaction
      still matches                   it did not: it may be attempted again
    anything else                     fenced: another worker has changed the row

Until then the attempt is unsure and nothing else is attempted. When the read fails too, it stays unsure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tistream.errors import CatalogUnavailable


class HasOutcome(Protocol):
    unsure: bool  #: the last attempt must be read back


@dataclass(slots=True)
class Attempt:
    unsure: bool = False


A = TypeVar("A", bound=HasOutcome)
T = TypeVar("T")


@contextmanager
def attempting(attempts: Iterable[HasOutcome]) -> Iterator[None]:
    """Around one transaction on behalf of all `attempts`: they become unsure when its reply is lost."""
    try:
        yield
    except CatalogUnavailable as e:
        for attempt in attempts:
            attempt.unsure = not e.determinate
        raise


def settle(attempts: Iterable[A], read_back: Callable[[list[A]], T], default: T) -> T:
    """Read back the unsure attempts, which are settled then; `default` without any."""
    unsure = [attempt for attempt in attempts if attempt.unsure]
    if not unsure:
        return default
    result = read_back(unsure)
    for attempt in unsure:
        attempt.unsure = False
    return result


def commit_or_read_back(transaction: Callable[[], T], read_back: Callable[[], T | None]) -> T:
    """The result of a transaction that is attempted once. `read_back` returns it when the transaction took effect or
    never will, and None when that is unknown: then CatalogUnavailable, not determinate, is raised."""
    attempt = Attempt()
    try:
        with attempting([attempt]):
            return transaction()
    except CatalogUnavailable:
        result = settle([attempt], lambda _: read_back(), None)
        if result is None:
            raise
        return result
