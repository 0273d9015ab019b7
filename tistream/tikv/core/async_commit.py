"""What the locks of a transaction of async commit decide, once its client is gone (pure).

    primary lock, names the secondary keys -> KvCheckSecondaryLocks of each -> the commit_ts, or 0: roll back

Such a transaction is committed as soon as all of its locks are written, although none of them says so: at the largest
min_commit_ts of its locks. A missing lock means that it is decided already: a commit record shows its commit_ts, and
else the store has made sure that the lock is never written.
"""

from __future__ import annotations

from collections.abc import Iterable

from tistream.errors import CorruptObject
from tistream.tikv.core.lock_messages import HeldLock, SecondaryLocks


class NotAsync(Exception):
    """A lock is not of async commit: the client has gone over to two phases, and the primary lock alone decides."""


def decided(primary: HeldLock, answers: Iterable[tuple[int, SecondaryLocks]]) -> int:
    """The commit_ts; 0 to roll back. `answers`: (number of keys asked for, answer), for all secondary keys.

    NotAsync; CorruptObject for answers that contradict each other."""
    commit_ts, ends = primary.min_commit_ts, set[int]()
    for asked, answer in answers:
        if len(answer.locks) < asked:
            ends.add(answer.commit_ts)
            continue
        for lock in answer.locks:
            if lock.start_ts != primary.start_ts:
                raise CorruptObject("a store returned the lock of another transaction", key=lock.key)
            if not lock.is_async:
                raise NotAsync
            commit_ts = max(commit_ts, lock.min_commit_ts)
    if len(ends) > 1 or (ends and 0 < min(ends) < primary.min_commit_ts):
        raise CorruptObject(
            "the secondary locks of a transaction contradict each other", start_ts=primary.start_ts, ends=sorted(ends)
        )
    if ends:
        return ends.pop()
    if commit_ts <= primary.start_ts:
        raise CorruptObject("the locks of an async commit have no commit_ts", start_ts=primary.start_ts)
    return commit_ts
