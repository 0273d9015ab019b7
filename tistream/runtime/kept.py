"""Results of a function, kept while they are asked for, up to a total weight. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


def kept(
    build: Callable[[*Ts], T], *, weigh: Callable[[tuple[*Ts]], int], count_max: int, weight_max: int
) -> Callable[[*Ts], T]:
    """`build`, whose last results are kept: at most `count_max`, whose arguments weigh at most `weight_max` in all. One
    is kept however heavy it is."""
    lock, known, weight = threading.Lock(), OrderedDict[tuple[*Ts], T](), 0

    def found(*args: *Ts) -> T:
        nonlocal weight
        with lock:
            if args in known:
                known.move_to_end(args)
                return known[args]
        made = build(*args)
        with lock:
            if args in known:
                return known[args]
            known[args] = made
            weight += weigh(args)
            while len(known) > 1 and (len(known) > count_max or weight > weight_max):
                weight -= weigh(known.popitem(last=False)[0])
        return made

    return found
