"""The form of keys, and the decision who may do what."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from tistream.errors import Unauthenticated
from tistream.http.auth.core.keys import format_key, format_token, hash_of, parse_key, without_secrets
from tistream.http.auth.core.roles import GRANTS, AccessDecision, Principal, Right, Role, decide, fits, may_give
from tistream.ids import Tenant

ID, SECRET = bytes(range(8)), bytes(range(24))
KEY = format_key(ID, SECRET)
MINE, OTHER = Tenant(1, 1), Tenant(1, 2)


def who(role: Role, tenant: Tenant | None = None) -> Principal:
    return Principal(key_id="k", name="k", role=role, tenant=tenant)


def test_a_key_says_its_id_and_keeps_its_secret() -> None:
    # base32 of 0x00..0x07 and of 0x00..0x17 by `base32` of coreutils, in small letters
    assert KEY.startswith("tsk_aaaqeayeaudao_aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfy")
    found = parse_key(KEY)
    assert found.key_id == "aaaqeayeaudao"
    assert found.secret_hash == hashlib.sha256(b"aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfy").hexdigest()


@pytest.mark.parametrize("at", range(len(KEY)))
def test_a_mistyped_or_cut_key_is_told_from_an_unknown_one(at: int) -> None:
    other = "b" if KEY[at] != "b" else "c"
    for wrong in (KEY[:at] + other + KEY[at + 1 :], KEY[:at], KEY[:at] + KEY[at + 1 :]):
        with pytest.raises(Unauthenticated) as caught:
            parse_key(wrong)
        assert SECRET.hex() not in str(caught.value)
        assert "aaaqeayeaudaocajb" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "tsk_", KEY.upper(), KEY + " ", " " + KEY, KEY + KEY, "Bearer " + KEY, "\udcff"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        parse_key(text)


def test_secrets_are_taken_out_of_what_is_kept() -> None:
    code, token = format_token("tsl", SECRET), format_token("tss", SECRET)
    text = f'{{"key":"{KEY}","url":"http://h/login#{code}","t":"{token}","id":"aaaqeayeaudao"}}'.encode()
    assert without_secrets(text) == (
        b'{"key":"tsk_aaaqeayeaudao_(shown once)","url":"http://h/login#tsl_(shown once)",'
        b'"t":"tss_(shown once)","id":"aaaqeayeaudao"}'
    )
    assert without_secrets(b"\xff no secret tsk_ in here") == b"\xff no secret tsk_ in here"
    assert hash_of(code) != hash_of(token)


@pytest.mark.parametrize(("role", "right"), list(itertools.product(Role, Right)))
def test_a_role_holds_its_rights_for_its_tenant_and_nothing_of_another(role: Role, right: Right) -> None:
    holds = right in GRANTS[role] or right in (Right.OPEN, Right.KNOWN)
    free = right in (Right.OPEN, Right.KNOWN)
    if fits(role, MINE):
        bound = who(role, MINE)
        assert decide(bound, right, MINE) is (AccessDecision.ALLOWED if holds else AccessDecision.WEAK)
        assert decide(bound, right, OTHER) is (AccessDecision.ALLOWED if free else AccessDecision.HIDDEN)
        assert decide(bound, right, None) is (AccessDecision.ALLOWED if free else AccessDecision.WEAK)
        assert decide(bound, right, None, filtered=True) is (AccessDecision.ALLOWED if holds else AccessDecision.WEAK)
    if fits(role, None):
        for tenant in (MINE, OTHER, None):
            assert decide(who(role), right, tenant) is (AccessDecision.ALLOWED if holds else AccessDecision.WEAK)


def test_who_runs_the_deployment_reads_no_rows_and_makes_no_keys() -> None:
    assert not GRANTS[Role.OPERATOR] & {Right.READ, Right.KEYS}
    assert GRANTS[Role.PUSHER] == {Right.PUSH}
    assert GRANTS[Role.VIEWER] == {Right.LOOK}


def test_nobody_gives_more_than_they_have() -> None:
    for role in Role:
        for tenant in (None, MINE):
            assert may_give(who(Role.OWNER), role, tenant)
            for poor in (who(Role.VIEWER), who(Role.OPERATOR), who(Role.CONSUMER, MINE), who(Role.PUSHER, MINE)):
                assert not may_give(poor, role, tenant)
    admin = who(Role.TENANT_ADMIN, MINE)
    given = {role for role in Role if may_give(admin, role, MINE)}
    assert given == {Role.VIEWER, Role.CONSUMER, Role.PUSHER, Role.TENANT_ADMIN}
    assert not any(may_give(admin, role, tenant) for role in Role for tenant in (None, OTHER))
