"""Conflict resolution: which of several prewrites of one (key, start_ts) a commit has committed.

Usually there is one, or all agree, and this module is not needed. Otherwise, in this order:

1. a PUT with an empty value (older TiKV's "fake prewrite") never replaces a full one; a DELETE is always full;
2. a larger `generation` wins;
3. within one subscription the later row wins;
4. across subscriptions the later one wins, if the TSOs order them: `a` is later than `b` if a was opened after b was
   ready. The intervals [open, ready] may overlap, or one was never ready; then
5. the COMMIT's own value decides (TiKV sends it up to 255 bytes);
6. else the result is None: undecided.

A prewrite whose op differs from the commit's is never chosen. Pure; one call per conflicting key, which is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tistream.model.change import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    op: int
    value: bytes | None
    old_value: bytes | None
    expire_ts: int
    flags: int
    generation: int
    subscription: tuple[int, ...]  #: store, incarnation, region, version, checkpoint_ts, open_ts
    open_ts: int
    ready_ts: int  #: 0 = not known to be ready
    row_no: int

    @property
    def is_fake(self) -> bool:
        return self.op == Op.PUT and not self.value

    @property
    def content(self) -> tuple[object, ...]:
        return (self.op, self.value, self.old_value, self.expire_ts, self.flags)


def choose(candidates: Sequence[Candidate], commit_op: int, commit_value: bytes | None) -> Candidate | None:
    """The committed prewrite (its value replaced by the commit's if only that is known), or None if undecided."""
    able = [c for c in candidates if commit_op in (Op.NONE, c.op)]
    able = [c for c in able if not c.is_fake] or able
    top = max((c.generation for c in able), default=0)
    last: dict[tuple[int, ...], Candidate] = {}
    for c in sorted((c for c in able if c.generation == top), key=lambda c: c.row_no):
        last[c.subscription] = c
    latest = list(last.values())
    if latest and all(c.is_fake for c in latest) and commit_value:
        return _with_value(latest, commit_value)
    for c in latest:
        if all(c.content == d.content or _is_later(c, d) for d in latest):
            return c
    return _with_value(latest, commit_value) if commit_value else None


def _is_later(a: Candidate, b: Candidate) -> bool:
    return b.ready_ts != 0 and a.open_ts > b.ready_ts


def _with_value(candidates: list[Candidate], value: bytes) -> Candidate | None:
    """The candidate with this value; if none has it, what all candidates agree on, with this value."""
    puts = [replace(c, value=value) for c in candidates if c.op == Op.PUT]
    exact = [c for c in candidates if c.op == Op.PUT and c.value == value]
    chosen = exact or puts
    return chosen[-1] if len({c.content for c in chosen}) == 1 else None
