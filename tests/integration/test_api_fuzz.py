"""Requests made from the API's own description: none may meet a fault of the server, and answers keep their word.

The requests are the same in each run. Streams have no end and are left out; waiting is cut short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import booleans
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from tests.kit.api_world import api_world
from tests.kit.control_app import control_app

CHECKS = (
    not_a_server_error,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.status_code_conformance,
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    with api_world(tmp_path_factory.mktemp("fuzz")) as world:
        world.log.build(2, upto=world.log.cuts(20)[0])
        yield control_app(world.catalog, "s3://bucket", world.store)


def test_no_request_meets_a_fault_of_the_server(app: FastAPI) -> None:
    described = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path_regex=":stream$")
    results = list(described.get_all_operations())
    operations = [result.ok() for result in results if isinstance(result, Ok)]
    assert len(operations) == len(results), "the description is wrong"
    assert len(operations) > 25
    statuses: Counter[int] = Counter()
    for operation in operations:
        _play(operation, statuses)
    assert statuses[200] > 20
    assert statuses[400] > 20
    assert statuses[404] > 20


def _play(operation: Any, statuses: Counter[int]) -> None:
    @settings(
        max_examples=10,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), of_mine=booleans())
    def ask(case: schemathesis.Case[Any], of_mine: bool) -> None:
        if case.query and "wait" in case.query:
            case.query["wait"] = 0
        if of_mine and "cluster_id" in (case.path_parameters or {}):
            case.path_parameters |= {"cluster_id": 1, "tenant_id": 1}  # else nothing is ever found
        if case.operation.definition.raw["operationId"] == "delete_tenant":
            case.query = {**(case.query or {}), "dry_run": "true"}  # later requests need it
        answer = case.call()
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=list(CHECKS))

    ask()
