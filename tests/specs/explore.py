"""Explores every state that a specification can reach, and finds the shortest way to one that breaks a promise.

A specification is a model of a protocol small enough to be played in every order: `initial` is where it begins,
`actions` is all that may happen next, and `violations` says which promises a state breaks. States are tuples of
non-negative integers, nested as deep as is convenient, with at most one form for each situation: what has no order is
sorted, and what no longer matters is left out. That is the only symmetry reduction.

Breadth first, so the first violation is one of the nearest. Of a state only its hash is kept, of 64 bits, beside that
of the state it was reached from: 16 bytes. Two states of one hash are taken for one, and what only the second reaches
is missed. If hashes are evenly distributed, that happens at all among n states with a probability of about n^2 / 2^65:
3e-10 for 10^5 states, 3e-6 for 10^7. A violation that is found is real: its way is played again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

State = tuple[Any, ...]
Hashes = npt.NDArray[np.int64]
CHUNK = 20_000  #: states whose successors are compared with what was seen, together


class Spec:
    """A protocol. Each rule can be left out, to see that it is needed."""

    rules_known: ClassVar[Mapping[str, str]]  #: name -> what the rule says

    def __init__(self, rules: Collection[str] | None = None) -> None:
        """`rules`: those in force; None = all."""
        self.rules = frozenset(self.rules_known if rules is None else rules)
        unknown = self.rules - self.rules_known.keys()
        if unknown:
            raise ValueError(f"{type(self).__name__} has no rules {sorted(unknown)}")

    def initial(self) -> State:
        """Where it begins."""
        raise NotImplementedError

    def actions(self, state: State) -> Iterable[tuple[str, State]]:
        """(what happens, the state afterwards) for all that may happen next."""
        raise NotImplementedError

    def violations(self, state: State) -> Sequence[str]:
        """The promises that the state breaks."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What an exploration has found."""

    states: int
    steps: int  #: actions tried; most lead to a known state
    depth: int  #: of the furthest state, in actions
    complete: bool  #: every state that can be reached was seen
    cpu_s: float
    violations: Sequence[str] = ()
    path: Sequence[str] = ()  #: the actions from the beginning to the violation

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}, {self.cpu_s:.1f} CPU s"
        if not self.violations:
            return f"{size}: {'complete' if self.complete else 'as far as asked'}, no violation"
        story = "\n".join(f"{n:4}. {action}" for n, action in enumerate(self.path, 1))
        return f"{size}: {'; '.join(self.violations)}\n{story}"


def explore(spec: Spec, states_max: int) -> Explored:
    """Explore breadth first until a violation, the end, or about `states_max` states."""
    began_s = process_time()
    first = spec.initial()
    seen = _Seen()
    level = [*seen.new({hash(first): (hash(first), first)})]
    count, steps, depth = 1, 0, 0

    def ended(complete: bool, broken: State | None = None) -> Explored:
        facts: dict[str, Any] = {}
        if broken is not None:
            facts = {"violations": spec.violations(broken), "path": _path(spec, seen.way_to(hash(broken)))}
        seconds = process_time() - began_s
        return Explored(states=count, steps=steps, depth=depth, complete=complete, cpu_s=seconds, **facts)

    if spec.violations(first):
        return ended(False, first)
    while level:
        if count >= states_max:
            return ended(False)
        depth += 1
        following: list[State] = []
        for at in range(0, len(level), CHUNK):
            reached: dict[int, tuple[int, State]] = {}
            for n in range(at, min(at + CHUNK, len(level))):
                state = level[n]
                parent = hash(state)
                for _, after in spec.actions(state):
                    steps += 1
                    reached.setdefault(hash(after), (parent, after))
                level[n] = ()  # its memory is needed for the next level
            for state in seen.new(reached):
                count += 1
                if spec.violations(state):
                    return ended(False, state)
                following.append(state)
            if count >= states_max:
                return ended(False)
        level = following
    depth -= 1  # the last level had no new state
    return ended(True)


class _Seen:
    """The hashes of all states, each with its parent's, in a few sorted arrays."""

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, Hashes]] = []

    def new(self, reached: Mapping[int, tuple[int, State]]) -> Iterator[State]:
        """Those of the reached states (hash -> parent's hash, state) that were not seen, which now are."""
        hashes = np.fromiter(reached, np.int64, len(reached))
        parents = np.fromiter((parent for parent, _ in reached.values()), np.int64, len(reached))
        fresh = np.ones(len(hashes), np.bool_)
        for hashes_run, _ in self._runs:
            fresh &= hashes_run[np.minimum(np.searchsorted(hashes_run, hashes), len(hashes_run) - 1)] != hashes
        if fresh.any():
            self._add(hashes[fresh], parents[fresh])
        return (state for (_, state), is_fresh in zip(reached.values(), fresh.tolist(), strict=True) if is_fresh)

    def way_to(self, last: int) -> list[int]:
        """The hashes from the first state to this one."""
        way = [last]
        while (parent := self._parent(way[-1])) != way[-1]:
            way.append(parent)
        return way[::-1]

    def _add(self, hashes: Hashes, parents: Hashes) -> None:
        """Runs of similar length are merged, so that there are few."""
        while self._runs and len(self._runs[-1][0]) < 2 * len(hashes):
            last_run, of_known = self._runs.pop()
            hashes, parents = np.concatenate([last_run, hashes]), np.concatenate([of_known, parents])
        order = np.argsort(hashes)
        self._runs.append((hashes[order], parents[order]))

    def _parent(self, child: int) -> int:
        for run, parents in self._runs:
            at = int(np.searchsorted(run, child))
            if at < len(run) and run[at] == child:
                return int(parents[at])
        raise KeyError(child)


def _path(spec: Spec, way: Sequence[int]) -> list[str]:
    """The actions along a way of hashes."""
    state, path = spec.initial(), []
    for target in way[1:]:
        label, state = next((label, after) for label, after in spec.actions(state) if hash(after) == target)
        path.append(label)
    return path


def put(of: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """The tuple with another value at this place."""
    return (*of[:at], value, *of[at + 1 :])
