"""What counts as taking something away from those who rely on the API's description."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from apiserver.openapi.breaking import broken

Document = dict[str, Any]
DOCUMENT: Document = {
    "paths": {
        "/a/{id}": {
            "get": {
                "operationId": "get_a",
                "parameters": [
                    {"in": "query", "name": "n", "schema": {"type": "integer", "minimum": 1, "maximum": 9}},
                    {"in": "query", "name": "w", "schema": {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]}},
                ],
                "responses": {
                    "200": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}, "text/csv": {}}
                    }
                },
            },
            "post": {
                "operationId": "new_a",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/B"}}}},
                "responses": {"201": {}},
            },
        }
    },
    "components": {
        "schemas": {
            "A": {
                "type": "object",
                "properties": {"s": {"type": "string"}, "l": {"type": "array", "items": {"type": "object",
                               "properties": {"k": {"type": "integer"}}}}},
            },
            "B": {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]},
        }
    },
}  # fmt: skip
PATHS, SCHEMAS = DOCUMENT["paths"], DOCUMENT["components"]["schemas"]


def get(d: Document) -> Document:
    operation: Document = d["paths"]["/a/{id}"]["get"]
    return operation


def schema(d: Document, name: str) -> Document:
    schema_object: Document = d["components"]["schemas"][name]
    return schema_object


def inner(d: Document) -> Document:
    """The fields of the items of A.l."""
    properties: Document = schema(d, "A")["properties"]["l"]["items"]["properties"]
    return properties


def or_null(of: Document) -> Document:
    return {"anyOf": [of, {"type": "null"}]}


BREAKS: list[tuple[str, Callable[[Document], object]]] = [
    ("GET /a/{id} is gone", lambda d: d["paths"]["/a/{id}"].pop("get")),
    ("POST /a/{id} is gone", lambda d: d["paths"].clear()),
    ("operationId", lambda d: get(d).update(operationId="other")),
    ("parameter n is gone", lambda d: get(d)["parameters"].pop(0)),
    ("narrower maximum", lambda d: get(d)["parameters"][0]["schema"].update(maximum=8)),
    ("narrower minimum", lambda d: get(d)["parameters"][0]["schema"].update(minimum=2)),
    ("may not be integer", lambda d: get(d)["parameters"][0]["schema"].update(type="string")),
    ("may not be y", lambda d: get(d)["parameters"][1]["schema"]["anyOf"][0].update(enum=["x", "z"])),
    ("parameter n is required now", lambda d: get(d)["parameters"][0].update(required=True)),
    ("parameter z is required", lambda d: get(d)["parameters"].append({"in": "query", "name": "z", "required": True})),
    ("answer 200 is gone", lambda d: get(d)["responses"].pop("200")),
    ("not offered as text/csv", lambda d: get(d)["responses"]["200"]["content"].pop("text/csv")),
    ("field s is gone", lambda d: schema(d, "A")["properties"].pop("s")),
    ("it is integer now, not string", lambda d: schema(d, "A")["properties"]["s"].update(type="integer")),
    (
        "it is null, string now, not string",
        lambda d: schema(d, "A")["properties"].update(s=or_null({"type": "string"})),
    ),
    ("it is anything now, not string", lambda d: schema(d, "A")["properties"]["s"].clear()),
    ("it is number now, not integer", lambda d: inner(d)["k"].update(type="number")),
    ("field k is gone", lambda d: schema(d, "A")["properties"]["l"]["items"]["properties"].clear()),
    ("field q is not known", lambda d: schema(d, "B")["properties"].pop("q")),
    ("field r is required now", lambda d: schema(d, "B").update(required=["q", "r"])),
]


@pytest.mark.parametrize(("words", "change"), BREAKS, ids=lambda v: v if isinstance(v, str) else "")
def test_what_takes_away_is_found(words: str, change: Callable[[Document], object]) -> None:
    new = copy.deepcopy(DOCUMENT)
    change(new)
    assert any(words in said for said in broken(DOCUMENT, new)), broken(DOCUMENT, new)


def test_what_adds_is_fine() -> None:
    new = copy.deepcopy(DOCUMENT)
    get(new)["parameters"].append({"in": "query", "name": "more", "schema": {"type": "string"}})
    get(new)["parameters"][0]["schema"].update(maximum=10, minimum=0)
    get(new)["responses"]["200"]["content"]["text/plain"] = {}
    get(new)["responses"]["404"] = {}
    schema(new, "A")["properties"]["more"] = {"type": "string"}
    schema(new, "B")["properties"]["more"] = {"type": "string"}
    new["paths"]["/b"] = {"get": {"operationId": "b", "responses": {}}}
    assert broken(DOCUMENT, new) == []
    assert broken(DOCUMENT, DOCUMENT) == []


def test_an_answer_that_says_more_of_itself_is_fine() -> None:
    old, new = copy.deepcopy(DOCUMENT), copy.deepcopy(DOCUMENT)
    schema(old, "A")["properties"]["s"]["type"] = ["string", "null"]
    schema(old, "A")["properties"]["l"]["items"] = or_null({"type": "object", "properties": {"k": {"type": "number"}}})
    schema(old, "A")["properties"]["any"] = {}
    schema(new, "A")["properties"]["any"] = {"type": "string"}
    schema(new, "A")["properties"]["l"]["items"] = {"$ref": "#/components/schemas/Item"}
    new["components"]["schemas"]["Item"] = {"type": "object", "properties": {"k": {"type": "integer"}}}
    assert broken(old, new) == []
