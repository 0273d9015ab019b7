"""`tistream catalog status|exports|restore|confirm`: the exports of the catalog, and the restore from one.

These commands open catalog and bucket themselves, as services do: they are for when no service runs.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream import ts as tso
from tistream.cli.options import DeploymentOptions
from tistream.cli.output import OutputForm, OutputOption, show_data, show_facts, show_rows
from tistream.cli.terminal import clean
from tistream.errors import ConfigError

if TYPE_CHECKING:
    from tistream.exports.restore import Restored
    from tistream.objectstore.protocol import ObjectStore

commands = typer.Typer(help="Restore the catalog from an export in the bucket.", no_args_is_help=True)

Export = Annotated[str, typer.Option("--export", help="Its key, see `tistream catalog exports`; default the newest.")]
Older = Annotated[
    bool, typer.Option("--older", help="Take an export that is not the newest: what was deleted since is missing.")
]


@commands.command()
def status(at: DeploymentOptions, output: OutputOption = OutputForm.TABLE) -> None:
    """Show the generation of the catalog, its newest export, and the bytes that wait for the next one."""
    from tistream.catalog.database.engine import Catalog
    from tistream.catalog.work.exports import export_status

    catalog = Catalog(_catalog_url(at))
    try:
        there = export_status(catalog)
    finally:
        catalog.close()
    newest = there.newest
    facts = {"generation": there.generation, "state": str(there.state), "exports": "on" if there.is_on else "off"}
    facts |= {"wanted": there.is_wanted, "waiting_bytes": there.waiting_bytes}
    if newest is not None:
        facts |= {
            "newest": newest.object_key,
            "rows": newest.rows,
            "bytes": newest.size,
            "age_s": newest.age_ms // 1000,
        }
    show_facts(facts, output)


@commands.command()
def exports(at: DeploymentOptions, output: OutputOption = OutputForm.TABLE) -> None:
    """List the exports in the bucket, those that a restore prefers last."""
    from tistream.exports.restore import exports_of

    rows = [
        {"export": str(key), "generation": key.generation, "leader_epoch": key.leader_epoch, "number": key.export_no}
        for key in exports_of(_bucket(at))
    ]
    columns = ["generation", "leader_epoch", "number", "export"]
    show_rows(rows, output, columns, no_color=True, empty="The bucket has no export.")


@commands.command()
def restore(
    at: DeploymentOptions, export: Export = "", older: Older = False, output: OutputOption = OutputForm.TABLE
) -> None:
    """Restore the catalog into an empty database, from the newest export.

    It is the next generation of the catalog. The processes of the generation before end by themselves within seconds,
    also where the old database still lives. Each changefeed and consumer is named with where it continues, and what it
    repeats. Start the services with the address of the restored catalog; nothing is deleted until `tistream catalog
    confirm`."""
    from tistream.catalog.database.engine import Catalog
    from tistream.catalog.rows.audit import Deed
    from tistream.cli.recorded import record_done
    from tistream.clock import SystemClock
    from tistream.exports.pieces import Sealing
    from tistream.exports.restore import restore as restore_catalog

    settings = at.settings()
    sealing = Sealing.of_file(settings.exports.key_file)
    catalog = Catalog(_catalog_url(at))
    try:
        made = restore_catalog(
            catalog,
            _bucket(at),
            SystemClock(),
            sealing=sealing,
            by=f"{getpass.getuser()}@{socket.gethostname()}",
            export=export,
            older=older,
            say=lambda line: print(line, file=sys.stdout if output is OutputForm.TABLE else sys.stderr, flush=True),
        )
        record_done(catalog, Deed(operation="tistream catalog restore", target=str(made.export)))
    finally:
        catalog.close()
    if output is OutputForm.TABLE:
        print("\n".join(_restored_lines(made)))
    else:
        show_data(_restored_facts(made), output)


def _restored_lines(made: Restored) -> Iterator[str]:
    yield f"generation {made.generation} has {made.rows:,} rows of {made.export}, restored in {made.seconds:.1f} s."
    yield from (clean(reader.sentence) for reader in made.readers)
    yield "Readers with a cursor of their own repeat nothing."
    yield "Start the services, look that they work, then run: tistream catalog confirm"


def _restored_facts(made: Restored) -> dict[str, Any]:
    return {
        "generation": made.generation,
        "export": str(made.export),
        "export_time": tso.to_text(tso.compose(made.snapshot_ms)),
        "rows": made.rows,
        "seeds_adopted": made.seeds,
        "seconds": round(made.seconds, 1),
        "readers": [reader.facts for reader in made.readers],
    }


@commands.command()
def confirm(at: DeploymentOptions) -> None:
    """Mark a restored catalog as good, so that objects are deleted again.

    Until then nothing is deleted. Confirm when all services run on it, and the data is as it should be."""
    from tistream.catalog.rows.audit import Deed
    from tistream.catalog.work.exports import confirm_restore
    from tistream.cli.assembly import opened

    with opened(at.settings(), Deed(operation="tistream catalog confirm")) as parts:
        confirm_restore(parts.catalog, actor=f"{getpass.getuser()}@{socket.gethostname()}")
    print("confirmed: objects are deleted again, once an export has the decision")


def _catalog_url(at: DeploymentOptions) -> str:
    url = at.settings().catalog.url
    if not url:
        raise ConfigError("Name the catalog: --catalog, or [catalog] url of the settings.")
    return url


def _bucket(at: DeploymentOptions) -> ObjectStore:
    from tistream.objectstore.metered import open_metered

    url = at.settings().object_store.url
    if not url:
        raise ConfigError("Name the bucket: --object-store, or [object_store] url of the settings.")
    return open_metered(url)
