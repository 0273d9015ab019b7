"""Keeps pandas out of processes that do not use it.

Before pyarrow makes its first array it imports pandas, where that is installed (Spark needs it), to know a pandas
column when it is given one: a third of a second of processor time and 40 MiB, in every process of a service. It asks
once only. A later conversion to or from pandas still imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType


class _Absent:
    """Finds modules as if pandas were not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("kept out", name=name)


def keep_pandas_out() -> None:
    """For this process. It has no effect after pyarrow's first array."""
    import pyarrow as pa

    sys.meta_path.insert(0, _Absent)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_Absent)
