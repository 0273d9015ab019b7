r"""Regular expressions (RE2) that callers send, at a bounded price.

RE2 needs time in proportion to the text and to the size of the compiled expression. A short expression can be costly:
`(\pL\pN?){0,18}` compiles for 40 ms, `(a|b).{900}z` reads 140 KB a second.

    weight      an estimate of the compiled size; bounded for one expression, and for all of a request (`Price`)
    allowance   processor time for all matching of one page: `found` reads values in slices and looks at the clock

An expression that costs more is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream.errors import FilterInvalid
from tistream.model.arrays import Mask

WEIGHT_MAX = 1_500  #: of one expression: 40 ms to compile
REQUEST_WEIGHT_MAX = 4_000  #: of all expressions of a request
_REPEAT = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")
_CLASS_OF_UNICODE = 40
_SLICE_BYTES_BY_WEIGHT = 16 << 20  # bytes of a slice times its weight: about 0.5 s at most
_S_BY_BYTE_AND_WEIGHT = 10e-9  # at worst
_SHORT_S = 0.05


class Price:
    """What the expressions of one request weigh."""

    def __init__(self) -> None:
        self._total = 0

    def refusal(self, regex: str) -> str:
        """Count one more; why it is refused, or an empty text."""
        mine = weight(regex)
        self._total += mine
        if mine > WEIGHT_MAX:
            return f"this expression is too large: {mine} parts when repetitions are written out, at most {WEIGHT_MAX}"
        if self._total > REQUEST_WEIGHT_MAX:
            return f"the expressions of a request are too large: more than {REQUEST_WEIGHT_MAX} parts"
        return ""


class Allowance:
    """Processor time for matching. `now` is a clock of the thread, in seconds."""

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        self._now, self.left_s = now, seconds
        self.spent_s = 0.0

    def slices(self, values: pa.Array, weight_: int, *, linear: bool) -> Iterator[pa.Array]:
        """The values in parts. FilterInvalid between two of them when the time is used up, and before a value that
        alone may take more; `linear`: it cannot."""
        at, most = 0, max(1, _SLICE_BYTES_BY_WEIGHT // max(1, weight_))
        ends = np.cumsum(pc.fill_null(pc.binary_length(values), 0).to_numpy())
        while at < len(values):
            before = int(ends[at - 1]) if at else 0
            upto = max(at + 1, int(np.searchsorted(ends, before + most, "right")))
            size = int(ends[upto - 1]) - before
            if not linear and size > most and size * weight_ * _S_BY_BYTE_AND_WEIGHT > self.left_s:
                raise _too_long(f"a value of {size} bytes may take longer than {self.left_s:.1f} s")
            began = self._now()
            yield values.slice(at, upto - at)
            took = self._now() - began
            self.spent_s, self.left_s, at = self.spent_s + took, self.left_s - took, upto
            if self.left_s < 0:
                raise _too_long(f"it takes longer than {self.spent_s:.1f} s of processor time")
            if took < _SHORT_S:
                most *= 4


_ALLOWED: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[Allowance]:
    """All matching in this block draws on the allowance."""
    token = _ALLOWED.set(allowance)
    try:
        yield allowance
    finally:
        _ALLOWED.reset(token)


def found(
    values: pa.Array | pa.ChunkedArray, regex: str | bytes, *, ignore_case: bool = False, linear: bool = False
) -> Mask:
    """In which values the expression is found; not in NULL. FilterInvalid when the allowance is used up."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    allowance = _ALLOWED.get()
    text = regex.decode("latin-1") if isinstance(regex, bytes) else regex
    parts = [whole] if allowance is None else allowance.slices(whole, weight(text), linear=linear)
    masks = [pc.match_substring_regex(part, regex, ignore_case=ignore_case).fill_null(False) for part in parts]
    return np.concatenate([np.zeros(0, np.bool_), *(mask.to_numpy(zero_copy_only=False) for mask in masks)])


@lru_cache(maxsize=256)
def weight(regex: str) -> int:
    """About how many parts the compiled expression has."""
    sums, last, at = [0], 0, 0
    while at < len(regex):
        c = regex[at]
        step, mine = 1, 1 if c.isascii() else 4
        if c == "\\":
            step = 2
            if regex[at + 1 : at + 2] in ("p", "P"):
                mine, step = _CLASS_OF_UNICODE, 3
                if regex[at + 2 : at + 3] == "{":
                    step = max(regex.find("}", at) - at + 1, 3)
        elif c == "[":
            end = _class_end(regex, at)
            inside = regex[at:end]
            mine, step = len(inside) + _CLASS_OF_UNICODE * inside.lower().count("\\p"), end - at
        elif c == "(":
            sums.append(0)
            last, at = 0, at + 1
            continue
        elif c == ")" and len(sums) > 1:
            mine = sums.pop() + 1
        elif (repeat := _REPEAT.match(regex, at)) is not None:
            times = max(1, int(repeat[1]), int(repeat[2] or 0))
            sums[-1] += last * (times - 1) + 1
            last, at = last * times, repeat.end()
            continue
        sums[-1], last, at = sums[-1] + mine, mine, at + step
    return sum(sums)


def _class_end(regex: str, at: int) -> int:
    end = at + 1
    if regex[end : end + 1] == "^":
        end += 1
    if regex[end : end + 1] == "]":
        end += 1
    while end < len(regex) and regex[end] != "]":
        end += 2 if regex[end] == "\\" else 1
    return min(end + 1, len(regex))


def _too_long(cause: str) -> FilterInvalid:
    return FilterInvalid(
        f"Regular expressions and LIKE of this request need too much time: {cause}. "
        "Take simpler ones, or a smaller limit."
    )
