"""pyarrow without pandas, and with it for who converts to it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyarrow as pa
from tistream.cli.no_pandas import keep_pandas_out
if {kept_out}:
    keep_pandas_out()
array = pa.array([1, None])
assert ("pandas" in sys.modules) is not {kept_out}
frame = pa.table({{"a": array}}).to_pandas()
assert pa.Table.from_pandas(frame)["a"].to_pylist()[0] == 1
import pandas
assert pa.array(pandas.Series([1, 2]), from_pandas=True).to_pylist() == [1, 2]
"""


def test_an_array_imports_no_pandas_and_a_conversion_does() -> None:
    for kept_out in (True, False):  # with pyarrow as it is, the first array imports it
        subprocess.run([sys.executable, "-c", PROGRAM.format(kept_out=kept_out)], check=True)
