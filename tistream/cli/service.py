"""What commands that talk to a service share: groups of options, the client, paths, and the result of an action.

A parameter whose type is a dataclass stands for the options that are its fields. A command declares neither `--json`,
which those that show data have, nor `--key` and the files of TLS, which those that ask a service have:
`with_shared_options` adds them to its signature, so that the next command has them too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from urllib.parse import quote

import typer

from tistream.cli.options import DEFAULT_URL, Ca, ClientCert, ClientKey, Cluster, Key, Tenant, Url
from tistream.cli.output import Column, NoColor, OutputForm, OutputOption, show_data, show_facts, show_rows

if TYPE_CHECKING:
    from tistream.client import Client

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where the service is, and the form of its answer."""

    url: Url = DEFAULT_URL
    output: OutputOption = OutputForm.TABLE

    @property
    def is_table(self) -> bool:
        return self.output is OutputForm.TABLE

    def get(self, path: str, **parameters: str) -> Any:
        """One answer, without waiting for a service that does not answer."""
        with connect(self.url, retry_s=0) as client:
            return client.get(path, **parameters)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a request with a body."""
        with connect(self.url) as client:
            return client.send(method, path, body or None)

    def show(self, value: dict[str, Any]) -> None:
        """Print one thing: a line for each fact, or as data."""
        show_facts(value, self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(ServiceOptions):
    """The same of a command whose answer may have colours."""

    no_color: NoColor = False

    def show(self, value: dict[str, Any]) -> None:
        show_facts(value, self.output, no_color=self.no_color)

    def show_rows(self, value: Any, columns: Sequence[Column], *, empty: str) -> None:
        """Print a list: as a table of these columns, or as data."""
        show_rows(value, self.output, columns, no_color=self.no_color, empty=empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOptions(ServiceOptions):
    """The same of a command that changes something."""

    dry_run: DryRun = False

    def act(self, path: str, **parameters: str | None) -> None:
        """POST an action and print its result."""
        with connect(self.url, retry_s=0) as client:
            query = given(**parameters, dry_run="true" if self.dry_run else None)
            show_outcome(client.post(path, None, **query), self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOptions:
    """The tenant that a command is about."""

    cluster: Cluster
    tenant: Tenant

    def path(self, *names: str) -> str:
        return tenant_path(self.cluster, self.tenant, *names)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.tenant}"


def connect(url: str, **options: Any) -> Client:
    """`tistream.client.connect`, imported when it is needed."""
    from tistream.client import connect

    return connect(url, **options)


def tenant_path(cluster: int, tenant: int, *names: str) -> str:
    """Path of a tenant's resource; names are quoted."""
    return "/".join([f"/v1/clusters/{cluster}/tenants/{tenant}", *(quote(name, safe="") for name in names)])


def given(**parameters: str | None) -> dict[str, str]:
    """The parameters that are set."""
    return {name: value for name, value in parameters.items() if value}


def show_outcome(outcome: dict[str, Any], output: OutputForm) -> None:
    """Print the result of an action: what it did, or would do."""
    if output is OutputForm.TABLE:
        print(f"{'would happen: ' if outcome['dry_run'] else ''}{outcome['words']}")
    else:
        show_data(outcome, output)


Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
_JSON = "as_json"
_ADDED = "__shared_options__"


def with_shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options of its groups, and with the shared options that these ask for."""
    if hasattr(command, _ADDED):
        return command
    own = _parameters(command)
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }
    last = [name for name, group in groups.items() if any(each.annotation == Url for each in _parameters(group))]
    options: list[inspect.Parameter] = []
    for parameter in sorted(own, key=lambda parameter: parameter.name in last):
        options += _parameters(groups[parameter.name]) if parameter.name in groups else [parameter]
    shown = [option.name for option in options if option.annotation == OutputOption]
    added = [_option(_JSON, Json, False)] if shown else []
    if any(option.annotation == Url for option in options):
        shared = {"key": Key, "ca": Ca, "client_cert": ClientCert, "client_key": ClientKey}
        own_names = {option.name for option in options}
        added += [_option(name, hint, None) for name, hint in shared.items() if name not in own_names]

    def run(**given: Any) -> Any:
        more = {option.name: given.pop(option.name) for option in added}
        if more.get(_JSON):
            given[shown[0]] = OutputForm.JSON
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature([*options, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in (*options, *added)}
    setattr(run, _ADDED, True)
    return run


def _parameters(of: Callable[..., Any]) -> list[inspect.Parameter]:
    """Of a command, or the fields of a group."""
    hints = get_type_hints(of, include_extras=True)
    return [_option(name, hints[name], each.default) for name, each in inspect.signature(of).parameters.items()]


def _option(name: str, hint: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def share_in(group: typer.Typer) -> None:
    """Give all commands of a group their shared options."""
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = with_shared_options(command.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            share_in(inner.typer_instance)
