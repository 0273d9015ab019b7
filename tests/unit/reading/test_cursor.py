"""Cursors round-trip, and refuse what they were not made for."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading import position
from reading.scope import Scope
from tistream.errors import CursorInvalid
from tistream.ids import Tenant

SCOPES = st.builds(
    Scope,
    tenant=st.builds(Tenant, st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    database=st.none() | st.text(min_size=1),
    table=st.none() | st.text(min_size=1),
)


@given(scope=SCOPES, ts=st.integers(0, (1 << 63) - 1))
def test_round_trip(scope: Scope, ts: int) -> None:
    text = position.encode_cursor(scope, ts)
    assert position.decode_cursor(text, scope) == ts
    assert text.replace("-", "").replace("_", "").isalnum()


@given(place=st.integers(0, 200), flip=st.integers(1, 255))
def test_damage_is_refused(place: int, flip: int) -> None:
    scope = Scope(tenant=Tenant(1, 2), database="shop")
    raw = bytearray(base64.urlsafe_b64decode(position.encode_cursor(scope, 77) + "=="))
    raw[place % len(raw)] ^= flip
    with pytest.raises(CursorInvalid):
        position.decode_cursor(base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("="), scope)


@pytest.mark.parametrize("text", ["", "abc", "!!!", "MQ", "é", "A" * 300])
def test_foreign_text_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 1)))


def test_a_cursor_of_another_tenant_is_refused() -> None:
    text = position.encode_cursor(Scope(tenant=Tenant(1, 1)), 5)
    with pytest.raises(CursorInvalid, match="another scope"):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 2)))
    with pytest.raises(CursorInvalid, match="another scope"):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 1), database="shop"))
