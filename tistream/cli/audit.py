"""`tistream audit`: is every object there that the catalog names?"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tistream.cli import options
from tistream.cli.options import Bucket, Config

_EXIT_FAULTS = 1


def audit(
    catalog: options.Catalog = None,
    bucket: Bucket = None,
    config: Config = None,
    grace_s: Annotated[int, typer.Option(min=0, help="Younger objects without a row are no orphans.")] = 3600,
) -> None:
    """Compare catalog and bucket: objects that are missing or have another size (faults: exit status 1), and how many
    have no row (the collector takes those). Reads only, and may run beside the service."""
    from metaserver.audit import audit as run
    from tistream.cli.assembly import load_settings, open_parts
    from tistream.cli.log import configure

    settings = load_settings(config, {"catalog.url": catalog, "object_store.url": bucket})
    configure(settings.log)
    parts = open_parts(settings)
    faults = 0
    try:
        for found in run(parts.catalog, parts.store, parts.clock, grace_ms=grace_s * 1000):
            faults += len(found.faults)
            print(
                json.dumps(
                    {
                        "tenant": str(found.tenant),
                        "objects": found.objects,
                        "bytes": found.bytes,
                        "orphans": found.orphans,
                        "orphan_bytes": found.orphan_bytes,
                        "faults": [
                            {"object": f.object_key, "bytes": f.bytes, "found_bytes": f.found_bytes}
                            for f in found.faults
                        ],
                    }
                )
            )
    finally:
        parts.catalog.close()
    if faults:
        print(f"tistream: {faults} objects are not as the catalog says", file=sys.stderr)
        raise typer.Exit(_EXIT_FAULTS)
