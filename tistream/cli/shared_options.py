"""Options that commands have because of what they do: `--json` of those that show data, `--key` of those that ask a
service.

A command declares neither. `with_shared_options` adds them to its signature, so that the next command has them too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from tistream.cli.options import Key, Url
from tistream.cli.output import Output, OutputOption

Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
_JSON = "as_json"
_ADDED = "__shared_options__"


def with_shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the shared options that its parameters ask for."""
    if hasattr(command, _ADDED):
        return command
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    shown = [name for name, hint in hints.items() if hint == OutputOption]
    added: dict[str, tuple[Any, object]] = {}
    if shown:
        added[_JSON] = (Json, False)
    if "key" not in hints and any(hint == Url for hint in hints.values()):
        added["key"] = (Key, None)

    def run(*args: Any, **given: Any) -> Any:
        for name in added:
            value = given.pop(name, None)
            if name == _JSON and value:
                given[shown[0]] = Output.JSON
        return command(*args, **given)

    known = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in added.items()
    ]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = hints | {name: hint for name, (hint, _) in added.items()}
    run.__signature__ = signature.replace(parameters=[*known, *more])  # type: ignore[attr-defined]
    setattr(run, _ADDED, True)
    return run


def share_in(group: typer.Typer) -> None:
    """Give all commands of a group their shared options."""
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = with_shared_options(command.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            share_in(inner.typer_instance)
