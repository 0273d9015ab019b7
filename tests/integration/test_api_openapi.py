"""The API's description: valid, with an example of each answer and each problem, and the examples are what comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from apiserver.openapi.document import recorded
from tests.kit.api_examples import record, shape
from tests.kit.control_app import control_app
from tistream.catalog.database.engine import Catalog
from tistream.http.error_reference import known_errors

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    catalog = Catalog("sqlite:////nowhere/catalog.db")
    with TestClient(control_app(catalog, "s3://bucket"), raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def document(http: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{m.upper()} {path}", o) for path, methods in document["paths"].items() for m, o in methods.items()]


def test_every_answer_has_an_example(document: dict[str, Any]) -> None:
    """What is missing is recorded: name the route in `tests.kit.api_examples` and run it."""
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


def test_examples_have_the_shape_of_what_is_answered_now(tmp_path: Path) -> None:
    now, kept = record(tmp_path), recorded()
    assert set(now) == set(kept), "run: python -m tests.kit.api_examples"
    for operation, examples in now.items():
        assert shape(examples) == shape(kept[operation]), f"{operation}: run python -m tests.kit.api_examples"


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
