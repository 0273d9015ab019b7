"""Finds breaking changes between two OpenAPI descriptions (pure).

Additions are compatible: routes, optional parameters, fields, media types, statuses. Removing or narrowing a route, a
parameter, an answer, a field, a type or an enumeration is not, nor is a newly required parameter. What an answer may
be may become less: a reader that copes with more copes with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_Node = Mapping[str, Any]


def broken(old: _Node, new: _Node) -> list[str]:
    """One sentence per breaking change."""
    return list(_paths(old, new))


def _paths(old: _Node, new: _Node) -> Iterator[str]:
    for path, methods in old.get("paths", {}).items():
        for method, was in methods.items():
            where = f"{method.upper()} {path}"
            now = new.get("paths", {}).get(path, {}).get(method)
            if now is None:
                yield f"{where} is gone"
                continue
            if was.get("operationId") != now.get("operationId"):
                yield f"{where}: its operationId has changed"
            yield from _parameters(where, was, now, old, new)
            yield from _answers(where, was, now, old, new)


def _parameters(where: str, was: _Node, now: _Node, old: _Node, new: _Node) -> Iterator[str]:
    before = {(p["in"], p["name"]): p for p in was.get("parameters", [])}
    after = {(p["in"], p["name"]): p for p in now.get("parameters", [])}
    for key, parameter in before.items():
        name = f"{where}: the {key[0]} parameter {key[1]}"
        if key not in after:
            yield f"{name} is gone"
            continue
        yield from _taken(name, parameter.get("schema", {}), after[key].get("schema", {}), old, new)
    for key, parameter in after.items():
        if parameter.get("required") and not before.get(key, {}).get("required"):
            yield f"{where}: the {key[0]} parameter {key[1]} is required now"
    body, body_now = (_body(each) for each in (was, now))
    if body is None and now.get("requestBody", {}).get("required"):
        yield f"{where}: a body is required now"
    if body is not None and body_now is not None:
        yield from _taken(f"{where}: the body", body, body_now, old, new)
        gained = set(_of(body_now, new).get("required", ())) - set(_of(body, old).get("required", ()))
        yield from (f"{where}: the body's field {name} is required now" for name in sorted(gained))


def _answers(where: str, was: _Node, now: _Node, old: _Node, new: _Node) -> Iterator[str]:
    for status, answer in was.get("responses", {}).items():
        if not status.startswith("2"):
            continue
        now_answer = now.get("responses", {}).get(status)
        if now_answer is None:
            yield f"{where}: the answer {status} is gone"
            continue
        for media, content in answer.get("content", {}).items():
            if media not in now_answer.get("content", {}):
                yield f"{where}: {status} is not offered as {media} any more"
                continue
            name = f"{where}: {status}"
            yield from _given(name, content.get("schema", {}), now_answer["content"][media].get("schema", {}), old, new)


def _given(where: str, was: _Node, now: _Node, old: _Node, new: _Node) -> Iterator[str]:
    """Breaking changes for readers of an answer."""
    before, after = list(_variants(was, old)), list(_variants(now, new))
    known, may = (set().union(*map(_types, each)) for each in (before, after))
    more = may - known - ({"integer"} if "number" in known else set())
    if known and (more or not may):
        yield f"{where}: it is {', '.join(sorted(may)) or 'anything'} now, not {', '.join(sorted(known))}"
        return
    fields, fields_now = _fields(before), _fields(after)
    for name, field in fields.items():
        if name not in fields_now:
            yield f"{where}: the field {name} is gone"
        else:
            yield from _given(f"{where}.{name}", field, fields_now[name], old, new)
    items, items_now = ([each["items"] for each in side if "items" in each] for side in (before, after))
    if items and items_now:
        yield from _given(f"{where}[]", items[0], items_now[0], old, new)


def _taken(where: str, was: _Node, now: _Node, old: _Node, new: _Node) -> Iterator[str]:
    """Breaking changes for senders of a request."""
    was, now = _of(was, old), _of(now, new)
    lost = _types(was) - _types(now)
    if lost and _types(now):
        yield f"{where} may not be {', '.join(sorted(lost))} any more"
    words = _words(was) - _words(now)
    if words and _words(now):
        yield f"{where} may not be {', '.join(sorted(words))} any more"
    for bound, narrower in (("minimum", max), ("maximum", min)):
        if bound in now and narrower(now[bound], was.get(bound, now[bound])) == now[bound] != was.get(bound):
            yield f"{where} has a narrower {bound}"
    for name, field in was.get("properties", {}).items():
        if name not in now.get("properties", {}):
            yield f"{where}: the field {name} is not known any more"
        else:
            yield from _taken(f"{where}.{name}", field, now["properties"][name], old, new)


def _body(operation: _Node) -> _Node | None:
    content = operation.get("requestBody", {}).get("content", {})
    schema: _Node | None = content.get("application/json", {}).get("schema")
    return schema


def _of(schema: _Node, document: _Node) -> _Node:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _variants(schema: _Node, document: _Node) -> Iterator[_Node]:
    """What a value of the schema may be; the schema itself, if it has no alternatives."""
    schema = _of(schema, document)
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for part in parts:
        yield from _variants(part, document)
    if not parts:
        yield schema


def _fields(variants: Iterable[_Node]) -> dict[str, _Node]:
    """Of an object that may have one of several shapes: the fields of all."""
    return {name: field for each in variants for name, field in each.get("properties", {}).items()}


def _types(schema: _Node) -> set[str]:
    said = [each["type"] for each in (schema, *schema.get("anyOf", ())) if "type" in each]
    return {str(kind) for kinds in said for kind in (kinds if isinstance(kinds, list) else [kinds])}


def _words(schema: _Node) -> set[str]:
    return {str(word) for each in (schema, *schema.get("anyOf", ())) for word in each.get("enum", ())}
