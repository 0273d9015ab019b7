"""The client's types of answers agree with the models of the API."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType
from typing import get_args, get_type_hints

from apiserver.answers.tenants import ListedTenant
from apiserver.openapi.document import example_of
from tistream.client.core.requests import TenantState, tenant_of


def test_a_tenant_of_the_client_has_fields_of_the_model_with_their_kinds() -> None:
    schema = ListedTenant.model_json_schema(mode="serialization")
    example = example_of(schema, schema["$defs"])
    tenant, hints = tenant_of(example), get_type_hints(TenantState)
    for name in {field.name for field in fields(TenantState)} - {"facts"}:
        assert name in schema["required"], name
        value, kinds = getattr(tenant, name), set(get_args(hints[name]) or (hints[name],)) - {NoneType}
        assert {type(value)} == kinds, name
        assert str(value) == str(example[name]), name
    assert tenant.facts == example
