"""The compiled loop over table keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tistream.codec.compiled import kernel


@kernel
def scan_keys(
    bounds: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    ids: npt.NDArray[np.int64],
    records: npt.NDArray[np.bool_],
) -> bool:
    """Fill `ids` and `records`. False as soon as a bound lies outside of `data`; nothing outside is read."""
    for i in range(len(ids)):
        start, end = np.int64(bounds[i]), np.int64(bounds[i + 1])
        if start < 0 or end < start or end > len(data):
            return False
        if end - start < 9 or data[start] != 0x74 or data[start + 1] < 0x80:  # not 't', or a negative table id
            continue
        table_id = np.int64(data[start + 1] & 0x7F)
        for j in range(start + 2, start + 9):
            table_id = table_id << 8 | np.int64(data[j])
        ids[i] = table_id
        records[i] = table_id > 0 and end - start >= 11 and data[start + 9] == 0x5F and data[start + 10] == 0x72
    return True
