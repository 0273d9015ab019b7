"""Errors as problem documents."""

from __future__ import annotations

import orjson
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tistream.errors import (
    CatalogUnavailable,
    CorruptObject,
    ErrorKind,
    Fenced,
    InvalidInput,
    NotFound,
    TiStreamError,
    TsExpired,
)
from tistream.http.problem import STATUS, install, problem_body, problem_response


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput(), 400),
        (NotFound(), 404),
        (CatalogUnavailable(), 503),
        (Fenced(), 409),
        (CorruptObject(), 500),
        (TiStreamError(), 500),
        (TsExpired(), 410),
    ],
)
def test_the_kind_decides_the_status(error: TiStreamError, status: int) -> None:
    answer = problem_response(error)
    assert answer.status_code == status
    assert orjson.loads(answer.body)["status"] == status
    assert ("retry-after" in answer.headers) == (status == 503)


def test_every_kind_has_a_status() -> None:
    assert set(STATUS) == set(ErrorKind)


def test_facts_survive_any_json_reader() -> None:
    body = problem_body(CorruptObject("torn", offset=(1 << 63) + 1, key=b"\x00\xff", whole=False, table=None))
    assert body["facts"] == {"offset": "9223372036854775809", "key": "00ff", "whole": False, "table": None}
    assert body["title"] == "An object is damaged or is not what its key names; nothing of it is used."
    assert body["detail"] == "torn"


def test_a_problem_repeats_a_bounded_part_of_what_was_sent() -> None:
    sent, key = "x" * 100_000, b"\xff" * 100_000
    body = problem_body(InvalidInput(f"There is no {sent}.", name=sent, key=key, keys=[key, sent]))
    assert body["detail"] == "There is no " + "x" * 985 + "..."
    facts = body["facts"]
    assert isinstance(facts, dict)
    for text in (facts["name"], facts["key"], *facts["keys"]):
        assert (len(text), text[-3:]) == (16_384, "...")
    whole = problem_body(InvalidInput("m" * 1000, key=b"\xff" * 8192))
    assert (whole["detail"], whole["facts"]) == ("m" * 1000, {"key": "ff" * 8192})


def test_a_defect_tells_nothing_of_its_inside() -> None:
    app = FastAPI()
    install(app)

    @app.get("/x")
    def broken() -> None:
        raise KeyError("secret")

    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/x")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
