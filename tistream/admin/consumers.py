"""Consumers as people and programs see them, with their members, partitions and leases; and the actions on them."""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.core.units import duration_text
from tistream.admin.reader_facts import lag_s, now_ms, reader_facts
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.consumers import CONSUMERS, ConsumerParts, parts_of, remove_consumer, reset_consumer
from tistream.catalog.tenancy.log_readers import LIVE, LogReader, ReaderState
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import InvalidInput
from tistream.ids import Tenant


def consumers_of(catalog: Catalog, tenant: Tenant) -> list[dict[str, Any]]:
    """The consumers of a tenant, by id."""
    parts, served = parts_of(catalog, tenant), served_watermark(catalog, tenant)
    rows = CONSUMERS.of_tenant(catalog, tenant)
    return [_facts(row, parts.get(row.name, ConsumerParts()), served) for row in rows]


def consumer_facts(catalog: Catalog, row: LogReader) -> dict[str, Any]:
    """A consumer that was read."""
    parts = parts_of(catalog, row.tenant, row.name).get(row.name, ConsumerParts())
    return _facts(row, parts, served_watermark(catalog, row.tenant))


def _facts(row: LogReader, parts: ConsumerParts, served: int) -> dict[str, Any]:
    return {
        "consumer_id": row.name,
        **reader_facts(row, served),
        "members": [member.name for member in parts.members],
        "leases_s": {member.name: (member.expires_ms - now_ms(row)) / 1000 for member in parts.members},
        "partitions": [
            {
                "partition": part.number,
                "member": part.member,
                "epoch": part.epoch,
                "checkpoint_ts": str(part.checkpoint_ts),
                "lag_s": lag_s(row, served, part.checkpoint_ts),
            }
            for part in parts.partitions
        ],
    }


def pause(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Give its members nothing more."""
    words = f"The members of consumer {name} are refused. Its checkpoint and its log are kept."
    return _switch(sources, tenant, name, ReaderState.STOPPED, "pause", words, dry_run=dry_run)


def resume(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Let its members continue."""
    words = f"The members of consumer {name} continue at its checkpoint."
    return _switch(sources, tenant, name, ReaderState.NORMAL, "resume", words, dry_run=dry_run)


def reset(sources: Sources, tenant: Tenant, name: str, to_ts: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Let all its partitions continue above `to_ts`."""
    row = CONSUMERS.get(sources.catalog, tenant, name)
    if not dry_run:
        reset_consumer(sources.catalog, tenant, name, to_ts)
    away = duration_text(abs(tso.physical_ms(row.checkpoint_ts) - tso.physical_ms(to_ts)))
    if to_ts < row.checkpoint_ts:
        effect = f"the changes of the last {away} before its checkpoint come again"
    elif to_ts > row.checkpoint_ts:
        effect = f"the changes of {away} after its checkpoint are skipped"
    else:
        effect = "its slowest partition stays where it is, the others read again"
    words = f"Consumer {name} continues at {tso.described(to_ts)}: {effect}. What its members have at hand is refused."
    return actions.outcome("reset", f"consumer {name}", dry_run, words)


def remove(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Forget the consumer."""
    row = CONSUMERS.get(sources.catalog, tenant, name)
    if not dry_run:
        remove_consumer(sources.catalog, tenant, name)
    log = " The log above its checkpoint is no longer kept for it." if row.holds_log else ""
    words = f"Consumer {name} and its position {tso.described(row.checkpoint_ts)} are removed for good.{log}"
    return actions.outcome("remove", f"consumer {name}", dry_run, words)


def _switch(
    sources: Sources, tenant: Tenant, name: str, to: ReaderState, verb: str, words: str, *, dry_run: bool
) -> dict[str, Any]:
    row = CONSUMERS.get(sources.catalog, tenant, name)
    if row.state not in LIVE:
        raise InvalidInput(f"Consumer {name} is {row.state}.", state=row.state)
    if not dry_run:
        CONSUMERS.switch(sources.catalog, tenant, name, to)
    return actions.outcome(verb, f"consumer {name}", dry_run, words)
