"""`tistream audit`: compares the objects in the bucket with those that the catalog names."""

from __future__ import annotations

import sys
from dataclasses import asdict
from operator import itemgetter
from typing import Annotated

import typer

from tistream.admin.core.units import bytes_text
from tistream.cli.options import Bucket, Catalog, Config
from tistream.cli.output import Column, Output, OutputOption, show_rows


def audit(
    catalog: Catalog = None,
    bucket: Bucket = None,
    config: Config = None,
    grace_s: Annotated[int, typer.Option(min=0, help="Younger objects without a row are no orphans.")] = 3600,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the objects in the bucket with those that the catalog names.

    Objects that are missing or have another size are faults: exit status 1. How many have no row is only counted: the
    collector removes those. The command reads only, and may run beside the service."""
    from metaserver.audit import audit as run
    from tistream.cli.assembly import opened
    from tistream.cli.run import settings_of

    audits = []
    with opened(settings_of(config, catalog=catalog, object_store=bucket)) as parts:
        for found in run(parts.catalog, parts.store, parts.clock, grace_ms=grace_s * 1000):
            wrong = [{"object": f.object_key, "bytes": f.bytes, "found_bytes": f.found_bytes} for f in found.faults]
            audits.append({**asdict(found), "tenant": str(found.tenant), "faults": wrong})
    columns: list[Column] = [(name, itemgetter(name)) for name in ("tenant", "objects", "orphans")]
    columns[2:2] = [("size", lambda a: bytes_text(a["bytes"]))]
    columns += [("of orphans", lambda a: bytes_text(a["orphan_bytes"])), ("faults", lambda a: len(a["faults"]))]
    show_rows(audits, output, columns, empty="no tenant is registered")
    faults = [fault for each in audits for fault in each["faults"]]
    if output is Output.TABLE:
        for fault in faults:
            found_size = "is missing" if fault["found_bytes"] is None else f"has {fault['found_bytes']} bytes"
            print(f"{fault['object']}: {found_size}, not {fault['bytes']}")
    if faults:
        print(f"tistream: {len(faults)} objects differ from the catalog", file=sys.stderr)
        raise typer.Exit(1)
