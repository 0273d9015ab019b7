"""Completes FastAPI's OpenAPI description: texts, example requests and answers, media types, problems by status.

The example of a JSON answer is put together from those of the fields of its model (`apiserver.answers`). Requests and
the answers in other media types are recorded from the service (`requests.json` and `examples.json`, see
`tests.kit.api_examples`), texts are in `descriptions.json`. The problems of a route follow from its parameters, see
`route_errors`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

from fastapi import FastAPI

from apiserver.openapi.route_errors import problems_of
from tistream.errors import TiStreamError
from tistream.http import problem

_FOLDER = Path(__file__).parent
_JSON = "application/json"
_BINARY = ("application/vnd.apache", "application/octet-stream")
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `type` is an address of this server that explains the problem.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "pattern": "^TS-[0-9]{4}$"},
        "hint": {"type": "string"},
        "facts": {"type": "object"},
    },
}


def install(app: FastAPI) -> None:
    """Complete the description of the app."""
    described = app.openapi

    def completed() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(described(), recorded(), requests(), descriptions())
        return app.openapi_schema

    app.openapi = completed  # type: ignore[method-assign]


def recorded() -> dict[str, dict[str, Any]]:
    """Operation -> media type other than JSON -> example of the answer."""
    examples: dict[str, dict[str, Any]] = json.loads((_FOLDER / "examples.json").read_text("utf-8"))
    return examples


def requests() -> dict[str, dict[str, Any]]:
    """Operation -> path, query and body of an example request."""
    examples: dict[str, dict[str, Any]] = json.loads((_FOLDER / "requests.json").read_text("utf-8"))
    return examples


def descriptions() -> dict[str, str]:
    """Operation -> what it does."""
    texts: dict[str, str] = json.loads((_FOLDER / "descriptions.json").read_text("utf-8"))
    return texts


def complete(
    document: dict[str, Any],
    examples: Mapping[str, Mapping[str, Any]],
    requests: Mapping[str, Mapping[str, Any]],
    texts: Mapping[str, str],
) -> dict[str, Any]:
    """The document with texts, examples and problems, changed in place. The app may lack routes of other services."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            _complete(path, method, operation, examples.get(name, {}), schemas)
            if name in texts:
                operation["description"] = texts[name]
            if name in requests:
                _show_request(path, method, operation, requests[name], schemas)
    return document


def _show_request(
    path: str, method: str, operation: dict[str, Any], request: Mapping[str, Any], schemas: dict[str, Any]
) -> None:
    """Add a request to the parameters, to the body and as a line for curl."""
    pattern = re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>.+?)", re.escape(path))
    match = re.fullmatch(pattern, request["path"])
    values = {**(match.groupdict() if match else {}), **request["query"]}
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in values:
            parameter["example"] = _typed(unquote(values[parameter["name"]]), parameter["schema"])
    query = f"?{urlencode(request['query'])}" if request["query"] else ""
    words = ["curl", "-s", *([] if method == "get" else ["-X", method.upper()])]
    if request["body"] is not None and "requestBody" in operation:
        content = operation["requestBody"]["content"][_JSON]
        content["example"] = request["body"]
        for each in (content["schema"], *content["schema"].get("anyOf", ())):
            if "$ref" in each:  # unknown members are refused
                schemas[each["$ref"].rpartition("/")[2]]["additionalProperties"] = False
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(request["body"])]
    line = shlex.join([*words, f"http://127.0.0.1:8711{request['path']}{query}"])
    operation["x-codeSamples"] = [{"lang": "Shell", "source": line}]


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of a parameter as its schema has it."""
    kinds = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
    if kinds & {"integer", "number", "boolean"} and "string" not in kinds:
        return json.loads(text)
    return text


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """An example value of a schema: its own, or one that is put together from those of its parts."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for several in ("examples", "enum"):
        if several in schema:
            return schema[several][0]
    for variants in ("anyOf", "oneOf"):
        if variants in schema:
            return example_of(schema[variants][0], schemas)
    match schema.get("type"):
        case "object":
            return {name: example_of(of, schemas) for name, of in schema.get("properties", {}).items()}
        case "array":
            return [example_of(schema["items"], schemas)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return schema.get("const", "text")


def _complete(
    path: str, method: str, operation: dict[str, Any], examples: Mapping[str, Any], schemas: dict[str, Any]
) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status in [code for code in responses if code.startswith("2")]:
        content = responses[status].setdefault("content", {})
        if content.get(_JSON) == {"schema": {}}:  # FastAPI's word for a route that returns a response of its own
            del content[_JSON]
        if _JSON in content:
            named = content[_JSON]["schema"]
            if "$ref" in named:  # beside it FastAPI says that the route returns a dictionary
                named = {"$ref": named["$ref"]}
            content[_JSON] = {"schema": named, "example": example_of(named, schemas)}
        content |= {media: _other(media, example) for media, example in examples.items()}
        if not content:
            del responses[status]["content"]
    problems: dict[str, list[type[TiStreamError]]] = {}
    for error, of_it in problems_of(path, method, operation):
        problems.setdefault(str(of_it), []).append(error)
    for code, errors in sorted(problems.items()):
        answer = responses.setdefault(code, {"description": _summary(errors)})
        answer.setdefault("content", {})[problem.MEDIA_TYPE] = {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "examples": {e.code: {"summary": e.__name__, "value": _example(e, int(code))} for e in errors},
        }


def _other(media: str, example: Any) -> dict[str, Any]:
    schema = {"type": "string", "contentMediaType": media} if media.startswith(_BINARY) else {"type": "string"}
    return {"schema": schema, "example": example}


def _summary(errors: list[type[TiStreamError]]) -> str:
    return " Or: ".join(dict.fromkeys((e.__doc__ or "").split("\n")[0] for e in errors))


def _example(error: type[TiStreamError], status: int) -> dict[str, Any]:
    return {**problem.problem_body(error()), "status": status}
