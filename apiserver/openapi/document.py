"""Completes FastAPI's OpenAPI description: texts, example requests and answers, shapes of answers, problems by status.

Examples are recorded from the service (`examples.json` and `requests.json`, see `tests.kit.api_examples`), texts are in
`descriptions.json`. A route declared as "an object" gets the shape of its example. The problems of a route follow from
its parameters, see `route_errors`.
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
    """Operation -> media type -> example of the answer."""
    found: dict[str, dict[str, Any]] = json.loads((_FOLDER / "examples.json").read_text("utf-8"))
    return found


def requests() -> dict[str, dict[str, Any]]:
    """Operation -> path, query and body of an example request."""
    found: dict[str, dict[str, Any]] = json.loads((_FOLDER / "requests.json").read_text("utf-8"))
    return found


def descriptions() -> dict[str, str]:
    """Operation -> what it does."""
    found: dict[str, str] = json.loads((_FOLDER / "descriptions.json").read_text("utf-8"))
    return found


def complete(
    document: dict[str, Any],
    examples: Mapping[str, Mapping[str, Any]],
    asked: Mapping[str, Mapping[str, Any]],
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
            if name in asked:
                _show_request(path, method, operation, asked[name], schemas)
    return document


def _show_request(
    path: str, method: str, operation: dict[str, Any], asked: Mapping[str, Any], schemas: dict[str, Any]
) -> None:
    """Add a request to the parameters, to the body and as a line for curl."""
    pattern = re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>.+?)", re.escape(path))
    found = re.fullmatch(pattern, asked["path"])
    values = {**(found.groupdict() if found else {}), **asked["query"]}
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in values:
            parameter["example"] = _typed(unquote(values[parameter["name"]]), parameter["schema"])
    query = f"?{urlencode(asked['query'])}" if asked["query"] else ""
    words = ["curl", "-s", *([] if method == "get" else ["-X", method.upper()])]
    if asked["body"] is not None and "requestBody" in operation:
        content = operation["requestBody"]["content"][_JSON]
        content["example"] = asked["body"]
        for each in (content["schema"], *content["schema"].get("anyOf", ())):
            if "$ref" in each:  # unknown members are refused
                schemas[each["$ref"].rpartition("/")[2]]["additionalProperties"] = False
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(asked["body"])]
    line = shlex.join([*words, f"http://127.0.0.1:8711{asked['path']}{query}"])
    operation["x-codeSamples"] = [{"lang": "Shell", "source": line}]


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of a parameter as its schema has it."""
    kinds = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
    if kinds & {"integer", "number", "boolean"} and "string" not in kinds:
        return json.loads(text)
    return text


def shape_of(example: Any) -> dict[str, Any]:
    """The JSON schema of values like this one. Anything may be null."""
    match example:
        case None:
            return {}
        case bool():
            return _or_null({"type": "boolean"})
        case int():
            return _or_null({"type": "integer"})
        case float():
            return _or_null({"type": "number"})
        case str():
            return _or_null({"type": "string"})
        case list():
            return _or_null({"type": "array", "items": shape_of(example[0]) if example else {}})
    return _or_null({"type": "object", "properties": {name: shape_of(value) for name, value in example.items()}})


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """An example value of a schema, for a route without a recorded one."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: example_of(of, schemas) for name, of in schema.get("properties", {}).items()}
        case "array":
            return [example_of(schema.get("items", {}), schemas)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return "text" if schema.get("type") == "string" else None


def _complete(
    path: str, method: str, operation: dict[str, Any], examples: Mapping[str, Any], schemas: dict[str, Any]
) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status in [code for code in responses if code.startswith("2")]:
        found = responses[status].get("content", {})
        if examples:
            typed = found.get(_JSON, {}).get("schema", {})
            responses[status]["content"] = {m: _content(m, example, typed) for m, example in examples.items()}
        else:
            for content in found.values():
                content["example"] = example_of(content.get("schema", {}), schemas)
    problems: dict[str, list[type[TiStreamError]]] = {}
    for error, of_it in problems_of(path, method, operation):
        problems.setdefault(str(of_it), []).append(error)
    for code, errors in sorted(problems.items()):
        answer = responses.setdefault(code, {"description": _summary(errors)})
        answer.setdefault("content", {})[problem.MEDIA_TYPE] = {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "examples": {e.code: {"summary": e.__name__, "value": _example(e, int(code))} for e in errors},
        }


def _content(media: str, example: Any, typed: Mapping[str, Any]) -> dict[str, Any]:
    if media != _JSON:
        schema = {"type": "string", "contentMediaType": media} if media.startswith(_BINARY) else {"type": "string"}
        return {"schema": schema, "example": example}
    says_nothing = not typed or (typed.get("additionalProperties") is True and "properties" not in typed)
    shape = {**shape_of(example), "type": "object"} if isinstance(example, dict) else shape_of(example)
    return {"schema": shape if says_nothing else typed, "example": example}


def _summary(errors: list[type[TiStreamError]]) -> str:
    return " Or: ".join(dict.fromkeys((e.__doc__ or "").split("\n")[0] for e in errors))


def _example(error: type[TiStreamError], status: int) -> dict[str, Any]:
    return {**problem.problem_body(error()), "status": status}
