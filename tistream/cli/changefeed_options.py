"""Options of the commands about changefeeds, and those that consumers share with them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tistream.cli.filter_options import EndKey, KeyPattern, Prefix, StartKey, ValuePattern, read_key_filter
from tistream.cli.service import TenantOptions
from tistream.errors import InvalidInput

Id = Annotated[str, typer.Argument(help="Name of the changefeed.", metavar="ID")]
OptionalId = Annotated[str | None, typer.Argument(help="Name of the changefeed.", metavar="ID")]
NamedId = Annotated[str | None, typer.Option("--changefeed-id", help="Name of the changefeed, as TiCDC's option.")]
_SinkUri = typer.Option(
    help="Where the service writes: tikv://PD:2379, s3://BUCKET/PREFIX?protocol=..., file:///FOLDER?..."
)
SinkUri = Annotated[str, _SinkUri]
NewSinkUri = Annotated[str | None, _SinkUri]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Where refused changes are written, so that their lane continues: file:///FOLDER, s3://BUCKET/PREFIX?...",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TiCDC or TiKV-CDC changefeed's TOML: its 'filter' section.")
]
FormatOfKeys = Annotated[
    str | None,
    typer.Option("--key-format", help="Of --start-key and --end-key: escaped, hex, utf8; TiKV-CDC calls it --format."),
]
Lanes = Annotated[int | None, typer.Option(min=1, help="Parts that are written side by side; 2 unless given.")]
Lane = Annotated[int, typer.Option("--lane", min=0, help="The lane that is stopped, as `query` shows it.")]
IdleHours = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Idle for so long, it holds the log no longer; 0 = no limit. Unless given, 24, or 720 for a consumer.",
    ),
]
StartTs = Annotated[str, typer.Option(help="A TSO, earliest or latest (also 0).")]
TargetTs = Annotated[int, typer.Option(min=0, help="Finish here; 0 = never.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions(TenantOptions):
    """A changefeed of a tenant, named once."""

    changefeed_id: OptionalId = None
    named: NamedId = None

    @property
    def name(self) -> str:
        if (self.changefeed_id is None) == (self.named is None):
            raise InvalidInput("Name the changefeed once: as ID or with --changefeed-id.", option="changefeed-id")
        return self.changefeed_id or self.named or ""

    def feed(self) -> str:
        """The path of the changefeed."""
        return self.path("changefeeds", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    """The entries of a keyspace that are wanted."""

    start_key: StartKey = None
    end_key: EndKey = None
    key_prefix: Prefix = None
    key_format: FormatOfKeys = None
    key_pattern: KeyPattern = None
    value_pattern: ValuePattern = None

    def keys(self, config: Path | None) -> dict[str, str]:
        """The wanted entries; keys are escaped unless a format is named. The [filter] section of a TiKV-CDC
        changefeed wins."""
        given = {name: text for name, text in asdict(self).items() if text is not None}
        in_file = {} if config is None else read_key_filter(config)
        return ({"key_format": "escaped", **given} if given else {}) | in_file
