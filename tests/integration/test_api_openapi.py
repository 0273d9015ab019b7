"""The API's description: valid, with an example of each answer and each problem, and the examples are what comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from apiserver.openapi.document import descriptions, recorded, requests
from tests.kit.api_examples import record, shape
from tests.kit.audit_witness import Witness, entries
from tests.kit.catalog_cases import new_catalog
from tests.kit.control_app import control_app
from tistream.catalog.database.engine import Catalog
from tistream.http.access_log import RequestLog
from tistream.http.audit.request import ROUTINE
from tistream.http.error_reference import known_errors
from tistream.ids import Tenant

JSON, PROBLEM = "application/json", "application/problem+json"


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    catalog = Catalog("sqlite:////nowhere/catalog.db")
    with TestClient(control_app(catalog, "s3://bucket"), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def document(http: TestClient) -> dict[str, Any]:
    openapi: dict[str, Any] = http.get("/openapi.json").json()
    return openapi


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{m.upper()} {path}", o) for path, methods in document["paths"].items() for m, o in methods.items()]


#: objects with other members each time: values of a row, facts of an event and of an error
FREE = {"columns", "old", "detail", "error", "facts"}


def test_every_json_answer_has_a_model_that_says_what_each_field_is(document: dict[str, Any]) -> None:
    models: set[str] = set()
    for name, operation in operations(document):
        for code, answer in operation["responses"].items():
            if code.startswith("2") and JSON in answer.get("content", {}):
                named = answer["content"][JSON]["schema"]
                model = re.fullmatch(r"#/components/schemas/(\w+)", named.get("items", named).get("$ref", ""))
                assert model, f"{name}: {named}"
                models.add(model[1])
    assert len(models) > 50
    assert sorted(vague_parts(document["components"]["schemas"], models)) == []


def vague_parts(schemas: dict[str, Any], models: set[str]) -> set[str]:
    """The fields of these models, and of those that they are made of, that may hold anything."""
    vague, todo, seen = set(), list(models), set(models)

    def look(schema: dict[str, Any], where: str) -> None:
        if "$ref" in schema:
            inner = schema["$ref"].rpartition("/")[2]
            if inner not in seen:
                seen.add(inner)
                todo.append(inner)
            return
        parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        more = schema.get("additionalProperties")
        parts += [schema["items"]] if "items" in schema else []
        parts += [more] if isinstance(more, dict) else []
        says = (
            parts
            or {"properties", "enum", "const"} & set(schema)
            or schema.get("type") not in (None, "object", "array")
        )
        if not says and where.rpartition(".")[2] not in FREE:
            vague.add(where)
        for part in parts:
            look(part, where)
        for field, of in schema.get("properties", {}).items():
            look(of, f"{where}.{field}")

    while todo:
        name = todo.pop()
        look(schemas[name], name)
    return vague


def test_every_answer_has_an_example(document: dict[str, Any]) -> None:
    """JSON has that of its model; other media types that are missing are recorded: see `tests.kit.api_examples`."""
    lacking = []
    for name, operation in operations(document):
        answers = [a for code, a in operation["responses"].items() if code.startswith("2")]
        assert answers, name
        for answer in answers:
            contents = answer.get("content", {})
            lacking += [name] if any(c.get("example") in (None, {}, []) for c in contents.values()) else []
            assert contents or name.startswith("DELETE"), name
    assert not lacking


def test_every_problem_has_an_example_that_its_address_explains(http: TestClient, document: dict[str, Any]) -> None:
    seen = set()
    for name, operation in operations(document):
        assert name.startswith("POST") or "422" not in operation["responses"], name
        for code, answer in operation["responses"].items():
            for example in answer.get("content", {}).get(PROBLEM, {}).get("examples", {}).values():
                body = example["value"]
                assert (str(body["status"]), body["type"]) == (code, f"/problems/{body['code']}"), name
                seen.add(body["type"])
        if "{" in name:
            assert {"404", "429", "500", "503"} <= set(operation["responses"]), name
    assert len(seen) > 12
    for address in sorted(seen):
        page = http.get(address)
        assert page.status_code == 200
        assert address.rpartition("/")[2] in page.text
        assert "script" not in page.text


def test_every_known_error_has_its_page_and_nothing_else(http: TestClient) -> None:
    everything = http.get("/problems").text
    for code, error in known_errors().items():
        assert f"/problems/{code}" in everything
        assert error.__name__ in http.get(f"/problems/{code}").text
    missing = http.get("/problems/TS-0000<script>")
    assert missing.status_code == 404
    assert missing.json()["code"] == "TS-1010"


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names)) > 25
    assert document["openapi"].startswith("3.1")


def address(name: str) -> str:
    """The path of an operation with a value for each parameter."""
    return re.sub(r"\{[^}]+\}", "1", name.partition(" ")[2])


def test_every_route_refuses_a_parameter_that_it_does_not_know(http: TestClient, document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        parameters = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
        answer = http.request(name.partition(" ")[0], address(name), params={"limitt": "5"})
        assert answer.status_code == 400, f"{name}: {answer.text}"
        assert answer.json()["facts"]["name"] == "limitt", name
        hint = "Did you mean limit" if "limit" in parameters else "Known: " if parameters else "the route takes none"
        assert hint in answer.json()["detail"], name


def test_every_route_refuses_a_member_of_the_body_that_it_does_not_know(
    http: TestClient, document: dict[str, Any]
) -> None:
    schemas, bodies = document["components"]["schemas"], 0
    for name, operation in operations(document):
        if name.startswith("GET "):
            continue
        text = json.dumps(operation.get("requestBody", {}))
        match = re.search(r"#/components/schemas/(\w+)", text)
        assert bool(match) == ("requestBody" in operation), name
        answer = http.request(name.partition(" ")[0], address(name), json={"database": "shop"})
        assert answer.status_code == 400, f"{name}: {answer.text}"
        if match is None:
            assert "takes no body" in answer.json()["detail"], name
            continue
        bodies += 1
        assert answer.json()["facts"]["name"] == "database", name
        assert "$ref" not in json.dumps([f.get("items") for f in schemas[match[1]]["properties"].values()]), name
    assert bodies > 7


@pytest.mark.parametrize(("sent", "refused"), [("csrf=abc", False), ("csrf=abc&database=shop", True)])
def test_a_form_of_the_console_may_carry_its_token_alone(http: TestClient, sent: str, refused: bool) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post("/v1/console-codes", content=sent, headers=headers)
    assert ("takes no body" in answer.text) == refused, answer.text


def test_every_get_route_answers_head(document: dict[str, Any], tmp_path: Path) -> None:
    paths = [address(name) for name, _ in operations(document) if name.startswith("GET ")]
    assert len(paths) > 40
    with TestClient(control_app(new_catalog(tmp_path))) as http:
        for path in paths:
            full, head = http.get(path), http.head(path)
            assert (head.status_code, head.content) == (full.status_code, b""), path
            assert head.headers.get("content-type") == full.headers.get("content-type"), path


class Played(NamedTuple):
    """One request of every operation, answered."""

    answers: dict[str, dict[str, str]]
    requests: dict[str, dict[str, Any]]
    judged: set[str]
    witness: Witness


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    witnesses: list[Witness] = []

    def watch(app: FastAPI, catalog: Catalog) -> Callable[[httpx2.Response], None]:
        app.add_middleware(RequestLog)
        witnesses.append(Witness(app, catalog))
        return witnesses[0].look

    yield Played(*record(tmp_path_factory.mktemp("played"), watch), *witnesses)
    witnesses[0].catalog.close()


def test_answers_fit_their_models_and_examples_have_the_shape_of_what_comes_now(
    played: Played, document: dict[str, Any]
) -> None:
    now, sent, judged, _ = played
    answers = {o["operationId"]: [r for c, r in o["responses"].items() if c[0] == "2"] for _, o in operations(document)}
    assert judged == {name for name, those in answers.items() if any(JSON in r.get("content", {}) for r in those)}
    for those, old in ((now, recorded()), (sent, requests())):
        assert set(those) == set(old), "run: python -m tests.kit.api_examples"
        for operation, examples in those.items():
            assert shape(examples) == shape(old[operation]), f"{operation}: run python -m tests.kit.api_examples"


def test_every_operation_that_is_no_get_has_an_entry_in_the_audit_log(played: Played) -> None:
    """tests/integration/test_audit_log.py shows that one which is exempted is noticed."""
    witness, catalog = played.witness, played.witness.catalog
    changing = witness.operations.changing()
    assert {name for name, _ in witness.seen} == changing, "each was asked for"
    assert len(changing) > 40
    assert witness.missing("me") == set()
    assert changing >= ROUTINE, "and these exist"
    results = {(entry.operation, entry.result, entry.status // 100) for entry in entries(catalog, principal="me")}
    assert {(name, "done", 2) for name in changing} == results
    assert "tsk_" not in str(entries(catalog))
    (made,), (rotated,) = (entries(catalog, operation=name) for name in ("create_key", "rotate_key"))
    assert made.target.removesuffix(" role=viewer") == rotated.target.partition(" successor=")[0]
    (consumer,) = entries(catalog, operation="create_consumer")
    assert (consumer.tenant, consumer.target) == (Tenant(1, 1), "consumer_id=warehouse")
    (deleted,) = entries(catalog, operation="delete_tenant")
    assert (deleted.tenant, deleted.target) == (Tenant(1, 1), "dry_run")


def test_every_operation_is_described_and_shows_a_request(document: dict[str, Any]) -> None:
    names = {operation["operationId"] for _, operation in operations(document)}
    assert names == set(descriptions()) == set(requests())
    for name, operation in operations(document):
        assert len(operation["description"]) > 30, name
        (line,) = operation["x-codeSamples"]
        assert line["source"].startswith("curl -s "), name
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert str(parameter["example"]), f"{name}: {parameter['name']}"
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["example"], name


def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    def check(schema: dict[str, Any], value: Any, where: str) -> None:
        whole = {**schema, "components": document["components"]}
        problems = [e.message for e in Draft202012Validator(whole).iter_errors(value)]
        assert not problems, f"{where}: {problems}"

    checked = 0
    for name, operation in operations(document):
        contents = [
            content for answer in operation["responses"].values() for content in answer.get("content", {}).values()
        ]
        contents += operation.get("requestBody", {}).get("content", {}).values()
        for content in contents:
            examples = [content["example"]] if "example" in content else []
            examples += [each["value"] for each in content.get("examples", {}).values()]
            for example in examples:
                check(content.get("schema", {}), example, name)
                checked += 1
        for parameter in operation.get("parameters", []):
            if "example" in parameter:
                check(parameter["schema"], parameter["example"], f"{name}: {parameter['name']}")
                checked += 1
    assert checked > 500


def test_the_page_to_read_it_brings_everything(http: TestClient) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("</", "")
    for line in page.text.splitlines():
        if "/static/vendor/" in line:
            assert 'integrity="sha384-' in line
            address = line.split('"')[3 if "link" in line else 1]
            assert http.get(address).status_code == 200
    assert "<script>" not in page.text


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(.*)")
_TSO = re.compile(r"\d{17,19}")
_OTHER_UNIT = re.compile(
    r"(.*_)?(ms|us|ns|msec|sec|secs|seconds|minutes|hours|days|unix|epoch_time|at|date|since|until|expires|age|lag|wait|"
    r"lease|timeout|ttl|interval|created|started|used|seen|watermark)"
)
_WORDS = ("earliest", "latest")  # of requests
_EXPIRY = "expire_ts"  # TiKV's name and unit: Unix seconds
_PAYLOAD = frozenset({"before", "after", "old"})  # of a change: the names of columns


def named_values(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The members of an example with their names, without rows of tables."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _PAYLOAD:
                yield from named_values(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from named_values(value, name)
    else:
        yield name, node


def wrong_time(name: str, value: Any) -> str | None:
    """What is against the rule of docs/api.md#times; None when nothing is."""
    if _OTHER_UNIT.fullmatch(name) and not isinstance(value, bool):
        return "the name has another unit, or none"
    if value is None or name == _EXPIRY:
        return None
    if name in ("ts", "as_of") or name.endswith("_ts"):
        return None if isinstance(value, str) and (value.isdecimal() or value in _WORDS) else "a TSO is decimal text"
    if name == "time" or name.endswith("_time"):
        match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
        return None if match and re.fullmatch(r"\.\d{3}Z", match[1]) else "a time is RFC 3339 in UTC with milliseconds"
    if name.endswith("_s"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number else "a span is a number of seconds"
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        return "a time is named _time"
    return (
        "a TSO is named _ts" if isinstance(value, str) and _TSO.fullmatch(value) and not name.endswith("_key") else None
    )


def test_times_have_one_unit_in_every_answer_and_body(document: dict[str, Any]) -> None:
    wrong = set()
    for name, operation in operations(document):
        answers = [a for code, a in operation["responses"].items() if code.startswith("2")]
        for part in (*answers, operation.get("requestBody", {})):
            example = part.get("content", {}).get("application/json", {}).get("example")
            wrong |= {(name, *each) for each in wrong_times(example)}
    assert sorted(wrong) == []


def wrong_times(example: Any) -> set[tuple[str, str]]:
    return {(key, said) for key, value in named_values(example) if (said := wrong_time(key, value))}


def test_names_of_times_have_one_unit_in_every_schema_and_parameter(document: dict[str, Any]) -> None:
    names: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each)
        elif isinstance(node, dict):
            fields = node.get("properties", {})
            names.update(key for key, field in fields.items() if field.get("type") != "boolean" and not is_flag(field))
            names.update(node["name"] for _ in [0] if isinstance(node.get("name"), str) and "in" in node)
            for key, each in node.items():
                walk(each) if key not in ("example", "examples") else None

    walk(document)
    assert {"start_ts", "lag_s", "commit_time", "lease_s"} <= names, "the walk sees each place"
    others = {name for name in names if _OTHER_UNIT.fullmatch(name)}
    assert others == {"wait"}, "the one parameter that is named as in other APIs"


def is_flag(field: dict[str, Any]) -> bool:
    return {"type": "boolean"} in field.get("anyOf", []) or "boolean" in (field.get("type") or [])
