"""Writes docs/reference/ from the code: settings, errors, commands, HTTP routes, metrics.

    python tools/reference.py              write the files
    python tools/reference.py --check      say which are out of date; exit 1 if any is
    python tools/reference.py --breaking   write them although the API's description breaks those who rely on it

What the code says is the only source: a setting's description, an error's docstring, a command's help, a route's
summary. So the way to better reference pages is better words there.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tistream import config
from tistream.errors import ErrorKind, TiStreamError
from tistream.http import error_reference

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
SETTINGS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
PACKAGES = SETTINGS["tool"]["importlinter"]["root_packages"]
_WRITTEN = "Written by `tools/reference.py` from the code; change the code's own words instead of this file."


def settings_page() -> str:
    """Every setting with its environment variable, default and meaning."""
    lines = [
        "# Settings", "", _WRITTEN, "",
        "A setting comes from a TOML file (`--config`), an environment variable or a flag; the later of these wins. An",
        "unknown one is refused with the nearest known one.", "",
    ]  # fmt: skip
    for section, holder in config.Settings.model_fields.items():
        lines += [f"## `[{section}]`", "", (type(holder.default).__doc__ or "").strip(), ""]
        lines += ["| setting | variable | default | meaning |", "| --- | --- | --- | --- |"]
        for name, info in type(holder.default).model_fields.items():
            variable = f"{config.ENV_PREFIX}{section}_{name}".upper()
            default = "" if info.default == "" else f"`{info.default}`"
            meaning = config.known_keys()[f"{section}.{name}"]
            lines.append(f"| `{section}.{name}` | `{variable}` | {default} | {_cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def errors_page() -> str:
    """Every error code with what a caller must do."""
    from tistream.http.problem import STATUS, status_of

    lines = [
        "# Errors", "", _WRITTEN, "",
        "Over HTTP an error is an RFC 9457 `application/problem+json` document with these members: `type`, `title`,",
        "`status`, `detail`, `code`, `hint` and `facts`. The command line prints the same words and ends with the exit",
        "status. A code never changes its meaning.", "",
        "| code | error | kind | HTTP | exit | meaning |", "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for error in sorted(error_classes(), key=lambda e: e.code):
        meaning = " ".join(filter(None, [(error.__doc__ or "").split("\n")[0], error.hint]))
        status = _BY_THE_API.get(error.code) or status_of(error())
        place = f"{error.kind} | {status} | {_exit(error.kind)}"
        lines.append(
            f"| [`{error.code}`](problems/{error.code}.md) | `{error.__name__}` | {place} | {_cell(meaning)} |"
        )
    lines += ["", "## Kinds", "", "| kind | what to do | HTTP |", "| --- | --- | --- |"]
    lines += [f"| {kind} | {error_reference.TO_DO[kind]} | {STATUS[kind]} |" for kind in ErrorKind]
    return "\n".join([*lines, ""])


#: statuses that `apiserver.app` chooses itself: no media type fits; the catalog names an object that is gone
_BY_THE_API = {"TS-1006": 406, "TS-1031": 500}


def cli_page() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from tistream.cli import main

    lines = ["# Commands", "", _WRITTEN, "", (main.__doc__ or "").strip(), ""]
    for words, command in _commands("tistream", get_command(main.command_line())):
        usage = " ".join([words, *(_usage(p) for p in command.params if p.name != "help")])
        lines += [f"## `{words}`", "", inspect.cleandoc(command.help or ""), "", "```", usage, "```", ""]
        described = [p for p in command.params if getattr(p, "help", None) and p.name != "help"]
        if described:
            lines += ["| | meaning | default |", "| --- | --- | --- |"]
            lines += [f"| `{_names(p)}` | {_cell(str(p.help))} | {_default(p)} |" for p in described]
            lines.append("")
    return "\n".join(lines)


def metrics_page() -> str:
    """Every metric with its labels and meaning."""
    from tistream.runtime import metrics

    lines = [
        "# Metrics", "", _WRITTEN, "",
        "Each process shows those that it has something to say about; see [observability](../observability.md). The",
        "Python runtime's own (`python_*`, `process_*`) come with them. Histograms: buckets from 1 ms to 300 s.", "",
        "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for each in metrics.described():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {_cell(each.words)} |")
    return "\n".join([*lines, ""])


def api_page() -> str:
    """Every HTTP route, as OpenAPI has it."""
    document = api_app().openapi()
    lines = [
        "# HTTP API", "", _WRITTEN, "",
        "Each API server (`tistream serve`, or `tistream up`) answers all of these on one port, pushers and operators",
        "included. The other processes answer the probes alone. `GET /openapi.json` is the machine-readable form.", "",
    ]  # fmt: skip
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            lines += [
                f"## `{method.upper()} {path}`",
                "",
                f"{route['summary']}. {route['description']} *{', '.join(route.get('tags', []))}*",
                "",
                *(line for sample in route["x-codeSamples"] for line in ("```", sample["source"], "```", "")),
            ]
            query = [p for p in route.get("parameters", []) if p["in"] == "query"]
            if query:
                lines += ["| parameter | meaning |", "| --- | --- |"]
                lines += [f"| `{p['name']}` | {_cell(p.get('description', ''))} |" for p in query]
                lines.append("")
    lines += [
        "## Other addresses",
        "",
        "Pages of the console and their parts; a page with `.json` behind its address is data.",
        "",
    ]
    shown = set(document["paths"])
    lines += [f"- `{path}`" for path in sorted({r.path_format for r in _routes() if r.path_format not in shown})]
    return "\n".join([*lines, ""])


def api_app() -> Any:
    """The application of an API server, over a catalog that is never opened."""
    from apiserver.app import create_app
    from reading.served.services import Services
    from tistream.catalog.database.engine import Catalog
    from tistream.clock import SystemClock
    from tistream.objectstore.memory import MemoryStore

    catalog, store, clock = Catalog("sqlite:////nowhere/catalog.db"), MemoryStore(), SystemClock()
    return create_app(Services.create(catalog, store, clock))


def error_classes() -> set[type[TiStreamError]]:
    """TiStreamError and everything derived from it, wherever it is defined."""
    for name in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
            if not module.name.startswith(("tests.kit", "tistream.catalog.database.migrations", "simulator.dst.")):
                importlib.import_module(module.name)
    classes, todo = {TiStreamError}, [TiStreamError]
    while todo:
        new = [e for e in todo.pop().__subclasses__() if e.__module__.split(".")[:2] != ["tistream", "testing"]]
        classes.update(new)
        todo += new
    return classes


def openapi_page() -> str:
    """The API's description."""
    return json.dumps(api_app().openapi(), indent=1, ensure_ascii=False) + "\n"


def problem_page(error: type[TiStreamError]) -> str:
    """What one problem means."""
    from tistream.http.problem import status_of

    lines = [f"# {error.code} {error.__name__}", "", _WRITTEN, "", *_between(error_reference.paragraphs(error))]
    lines += [f"**What to do:** {error.hint}", ""] if error.hint else []
    status = _BY_THE_API.get(error.code) or status_of(error())
    lines += [f"Kind `{error.kind}`: {error_reference.TO_DO[error.kind]}. HTTP status {status}."]
    return "\n".join([*lines, ""])


def _between(paragraphs: list[str]) -> list[str]:
    return [line for paragraph in paragraphs for line in (paragraph, "")]


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "cli.md": cli_page,
    "api.md": api_page,
    "metrics.md": metrics_page,
    "openapi.json": openapi_page,
}


for _error in sorted(error_classes(), key=lambda e: e.code):
    PAGES[f"problems/{_error.code}.md"] = partial(problem_page, _error)


def _routes() -> list[Any]:
    """The application's plain page routes, however they are nested."""
    routes, todo = [], list(api_app().routes)
    while todo:
        route = todo.pop()
        todo += getattr(getattr(route, "original_router", route), "routes", None) or []
        if hasattr(route, "path") and "GET" in (getattr(route, "methods", None) or ()):
            routes.append(route)
    return routes


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """(words, command) of every leaf, depth first."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
    else:
        for name, one in inner.items():
            yield from _commands(f"{words} {name}", one)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    return ", ".join(parameter.opts)


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"{parameter.name}" if parameter.required else f"[{parameter.name}]"
    flag = max(parameter.opts, key=len)
    shown = flag if parameter.is_flag else f"{flag} {str(parameter.name).upper()}"
    return shown if parameter.required else f"[{shown}]"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "*required*"
    value = parameter.default
    return "" if value in (None, "", False) or callable(value) else f"`{getattr(value, 'value', value)}`"


def _exit(kind: ErrorKind) -> int:
    from tistream.cli.main import EXIT

    return EXIT[kind]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def broken() -> list[str]:
    """What the code's description takes away from those who rely on the committed one."""
    from apiserver.openapi.breaking import broken as between

    committed = FOLDER / "openapi.json"
    return between(json.loads(committed.read_text("utf-8")), api_app().openapi()) if committed.exists() else []


def main() -> int:
    """Write or check."""
    (FOLDER / "problems").mkdir(parents=True, exist_ok=True)
    if "--check" not in sys.argv and "--breaking" not in sys.argv and (lost := broken()):
        print("the API's description breaks those who rely on the committed one:", *lost, sep="\n  ")
        print("write it on purpose with --breaking")
        return 1
    old = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if "--check" in sys.argv:
            old += [name] if not path.exists() or path.read_text("utf-8") != text else []
        else:
            path.write_text(text, "utf-8")
    if old:
        print(f"out of date: {', '.join(old)}; run python tools/reference.py")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
