"""What the routes of consumers and changefeeds have in common: fields, where one starts, and what both show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import Seconds, Time, Tso
from apiserver.control.routing import timestamp
from reading.filters import TEXT_MAX
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.log_readers import ReaderState, ReaderTable
from tistream.catalog.work.tasks import served_watermark
from tistream.ids import Tenant

IDLE_S_MAX = 3_600_000_000
TSO = r"^\d{1,19}$"
StartTs = Annotated[str, Field(pattern=r"^(\d{1,19}|earliest|latest)$", description="a TSO, `earliest` or `latest`")]
_FilterText = Annotated[str, Field(max_length=TEXT_MAX)]
Filters = dict[Literal["tables", "columns", "ops", "where", "changed", "event_filters"], _FilterText]


class ReaderFacts(BaseModel):
    """What consumers and changefeeds have in common."""

    state: ReaderState
    start_ts: Tso
    checkpoint_ts: Tso
    checkpoint_time: Time | None = Field(description="null before the log begins")
    target_ts: Tso = Field(description="where it ends; 0 = nowhere")
    filters: dict[str, str] = Field(examples=[{"tables": "shop.*"}])
    created_time: Time
    seen_time: Time = Field(description="of its last request, or when its checkpoint last moved")
    lag_s: Seconds = Field(description="from the checkpoint to the served watermark")
    idle_s: Seconds = Field(description="since its last request, or since its checkpoint moved or was the watermark")
    idle_limit_s: Seconds = Field(description="idle for longer, it no longer holds the log; 0 = it holds for ever")
    holds_log: bool


def start_of(catalog: Catalog, tenant: Tenant, readers: ReaderTable[Any], name: str, word: str) -> int | None:
    """The start as a TSO; None = that of the log."""
    if word == "earliest":
        return None
    if word != "latest":
        return timestamp(word)
    same = {row.name: row for row in readers.of_tenant(catalog, tenant)}.get(name)
    return served_watermark(catalog, tenant) if same is None else int(same.start_ts)  # latter: a repeated request


def texts(given: Mapping[Any, str]) -> dict[str, str]:
    """Names of filters or keys as plain text."""
    return {str(name): text for name, text in given.items()}
