"""`tistream audit`: compares the objects in the bucket with those that the catalog names."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tistream.cli.options import Bucket, Catalog, Config


def audit(
    catalog: Catalog = None,
    bucket: Bucket = None,
    config: Config = None,
    grace_s: Annotated[int, typer.Option(min=0, help="Younger objects without a row are no orphans.")] = 3600,
) -> None:
    """Compare the objects in the bucket with those that the catalog names.

    Objects that are missing or have another size are faults: exit status 1. How many have no row is only counted: the
    collector removes those. The command reads only, and may run beside the service."""
    from metaserver.audit import audit as run
    from tistream.cli.assembly import opened
    from tistream.cli.run import settings_of

    faults = 0
    with opened(settings_of(config, catalog=catalog, object_store=bucket)) as parts:
        for found in run(parts.catalog, parts.store, parts.clock, grace_ms=grace_s * 1000):
            faults += len(found.faults)
            wrong = [{"object": f.object_key, "bytes": f.bytes, "found_bytes": f.found_bytes} for f in found.faults]
            print(json.dumps({**asdict(found), "tenant": str(found.tenant), "faults": wrong}))
    if faults:
        print(f"tistream: {faults} objects differ from the catalog", file=sys.stderr)
        raise typer.Exit(1)
