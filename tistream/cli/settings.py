"""`tistream config show|explain`: the settings that a service would start with, and their sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tistream.cli.options import Config
from tistream.cli.output import NoColor, OutputForm, OutputOption, show_data, show_rows

commands = typer.Typer(help="Look at the settings that a service would start with.", no_args_is_help=True)


@commands.command()
def show(config: Config = None, output: OutputOption = OutputForm.YAML) -> None:
    """Show the settings as a tree; passwords in addresses are left out."""
    tree: dict[str, Any] = {}
    for row in _rows(config):
        section, name = row["setting"].split(".")
        tree.setdefault(section, {})[name] = row["value"]
    show_data(tree, OutputForm.YAML if output is OutputForm.TABLE else output)


@commands.command()
def explain(
    setting: Annotated[str | None, typer.Argument(help="One setting, or one section; all without it.")] = None,
    config: Config = None,
    output: OutputOption = OutputForm.TABLE,
    no_color: NoColor = False,
) -> None:
    """List settings with value, source, variable and meaning."""
    from tistream.config import suggest
    from tistream.errors import NotFound

    rows = _rows(config)
    if setting is not None:
        matching = [row for row in rows if row["setting"] == setting or row["setting"].startswith(f"{setting}.")]
        if not matching:
            raise NotFound(f"There is no setting '{setting}'.{suggest(setting)}")
        rows = matching
    names = ("setting", "value", "source", "variable", "meaning")
    show_rows({"items": rows}, output, names, no_color=no_color)


def _rows(path: Any) -> list[dict[str, Any]]:
    """Every setting. The source is the strongest that names it: a variable, the file, or the default."""
    from tistream import config
    from tistream.cli.assembly import load_settings, setting_sources

    settings = load_settings(path, {})
    where = setting_sources(path)
    rows = []
    for key, meaning in config.known_keys().items():
        section, name = key.split(".")
        variable = f"{config.ENV_PREFIX}{section}_{name}".upper()
        value = getattr(getattr(settings, section), name)
        rows.append(
            {
                "setting": key,
                "value": "***" if name.endswith("_token") and value else _redacted(value),
                "source": where.get(key, "default"),
                "variable": variable,
                "meaning": meaning,
            }
        )
    return rows


def _redacted(value: object) -> object:
    """An address without its password."""
    import re

    return re.sub(r"(//[^:/@]*):[^@/]*@", r"\1:***@", value) if isinstance(value, str) else value
