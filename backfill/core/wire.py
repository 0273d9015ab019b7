"""Plan rows and results read back from the text that `compactor.core.wire.encode` makes of them."""

from __future__ import annotations

import orjson

from backfill.core.plan import PlanRow, Step
from backfill.replay import PartResult
from compactor.core.wire import with_keys
from tistream.catalog.log.committed import NewSegment
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange


def decode_row(text: str) -> PlanRow:
    """What `encode` made of a plan row."""
    found = orjson.loads(text)
    positions = {
        int(store): {int(life): Position(**at) for life, at in lives.items()}
        for store, lives in found["positions"].items()
    }
    range_ = KeyRange(bytes.fromhex(found["range"]["start"]), bytes.fromhex(found["range"]["end"]))
    steps = tuple(Step(**step) for step in found["steps"])
    told = {"tenant": Tenant(**found["tenant"]), "range": range_, "positions": positions, "steps": steps}
    return PlanRow(**{**found, **told})


def decode_result(text: str) -> PartResult:
    """What `encode` made of a result."""
    found = orjson.loads(text)
    segments = tuple(NewSegment(**with_keys(segment)) for segment in found["segments"])
    return PartResult(**{**found, "segments": segments, "keeps": tuple(found["keeps"])})
