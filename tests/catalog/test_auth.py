"""Keys, logins and kept answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.catalog_cases import OTHER, T, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.idempotency_keys import IN_FLIGHT_MS, KEPT_MS, begin_answer, drop_answer, keep_answer
from tistream.catalog.tenancy.keys import (
    USED_EVERY_MS,
    NewKey,
    create_first_key,
    create_key,
    get_key,
    list_keys,
    note_key_used,
    revoke_key,
    rotate_key,
)
from tistream.catalog.tenancy.logins import end_session, find_session, open_code, open_session, redeem_code
from tistream.errors import Fenced, NotFound

HOUR_MS = 3_600_000
ONE = NewKey(key_id="one", secret_hash="1" * 64, name="Jürgen's ☂ key", role="consumer", tenant=T)
OWNER = NewKey(key_id="own", secret_hash="2" * 64, name="owner", role="owner")


class TestAuth:
    def test_a_key_comes_back_as_it_was_made(self, catalog: Catalog) -> None:
        key = create_key(catalog, ONE)
        assert key.state == "living"
        assert (key.name, key.role, key.tenant, key.secret_hash) == (ONE.name, "consumer", T, "1" * 64)
        assert (key.expires_ms, key.last_used_ms, key.revoked_ms, key.replaced_by) == (0, 0, 0, None)
        assert abs(key.read_ms - key.created_ms) < 60_000
        assert replace(get_key(catalog, "one"), read_ms=0) == replace(key, read_ms=0)
        with pytest.raises(NotFound):
            get_key(catalog, "One")

    def test_keys_are_listed_by_tenant(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        create_key(catalog, replace(ONE, key_id="two", tenant=OTHER))
        create_key(catalog, OWNER)
        assert {row.key_id for row in list_keys(catalog)} == {"one", "two", "own"}
        assert [row.key_id for row in list_keys(catalog, OTHER)] == ["two"]

    def test_a_key_ends_by_itself(self, catalog: Catalog) -> None:
        key = create_key(catalog, replace(ONE, ttl_ms=HOUR_MS))
        assert key.expires_ms == key.created_ms + HOUR_MS
        shift(catalog, tables.api_keys.c.expires_ms, -HOUR_MS - 60_000)
        assert get_key(catalog, "one").state == "expired"

    def test_a_key_is_revoked_once_and_for_good(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        assert revoke_key(catalog, "one")
        ended = get_key(catalog, "one")
        assert ended.state == "revoked"
        assert not revoke_key(catalog, "one")
        assert get_key(catalog, "one").revoked_ms == ended.revoked_ms
        with pytest.raises(NotFound):
            revoke_key(catalog, "none")

    def test_the_first_key_is_made_once_by_concurrent_callers(self, catalog: Catalog) -> None:
        won = together(6, lambda i: create_first_key(catalog, replace(OWNER, key_id=f"own{i}")))
        assert won.count(True) == 1
        assert [row.key_id for row in list_keys(catalog)] == [f"own{won.index(True)}"]
        revoke_key(catalog, f"own{won.index(True)}")
        assert not create_first_key(catalog, OWNER), "a dead key was a key, too"

    def test_a_rotated_key_counts_until_the_overlap_ends(self, catalog: Catalog) -> None:
        create_key(catalog, replace(ONE, ttl_ms=48 * HOUR_MS))
        new = rotate_key(catalog, "one", "new", "3" * 64, overlap_ms=HOUR_MS, created_by="own")
        old = get_key(catalog, "one")
        assert (new.name, new.role, new.tenant, new.secret_hash, new.created_by) == (
            ONE.name,
            "consumer",
            T,
            "3" * 64,
            "own",
        )
        assert (new.state, old.state, old.replaced_by) == ("living", "living", "new")
        assert new.expires_ms - new.created_ms == 48 * HOUR_MS
        assert abs(old.expires_ms - old.read_ms - HOUR_MS) < 60_000

    def test_an_overlap_never_lengthens_a_life(self, catalog: Catalog) -> None:
        key = create_key(catalog, replace(ONE, ttl_ms=HOUR_MS))
        rotate_key(catalog, "one", "new", "3" * 64, overlap_ms=24 * HOUR_MS, created_by="")
        assert get_key(catalog, "one").expires_ms == key.expires_ms
        create_key(catalog, OWNER)
        assert rotate_key(catalog, "own", "own2", "4" * 64, overlap_ms=0, created_by="").expires_ms == 0
        assert get_key(catalog, "own").state == "expired"

    def test_a_key_has_one_successor(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)

        def rotate(i: int) -> bool:
            try:
                rotate_key(catalog, "one", f"new{i}", "3" * 64, overlap_ms=HOUR_MS, created_by="")
            except Fenced:
                return False
            return True

        assert together(5, rotate).count(True) == 1
        assert len(list_keys(catalog)) == 2

    def test_the_dead_have_no_successors(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        revoke_key(catalog, "one")
        create_key(catalog, replace(ONE, key_id="two", ttl_ms=HOUR_MS))
        shift(catalog, tables.api_keys.c.expires_ms, -2 * HOUR_MS)
        for key_id in ("one", "two"):
            with pytest.raises(Fenced):
                rotate_key(catalog, key_id, "new", "3" * 64, overlap_ms=HOUR_MS, created_by="")
        assert len(list_keys(catalog)) == 2

    def test_the_last_use_is_written_now_and_then(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        note_key_used(catalog, "one")
        first = get_key(catalog, "one").last_used_ms
        assert first > 0
        note_key_used(catalog, "one")
        assert get_key(catalog, "one").last_used_ms == first
        shift(catalog, tables.api_keys.c.last_used_ms, -USED_EVERY_MS - 1000)
        note_key_used(catalog, "one")
        assert get_key(catalog, "one").last_used_ms >= first

    # logins

    def test_a_code_opens_one_session(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        open_code(catalog, "c" * 64, "one", HOUR_MS)
        assert find_session(catalog, "c" * 64) is None, "a code is no session"
        won = together(5, lambda i: redeem_code(catalog, "c" * 64, str(i) * 64, HOUR_MS))
        assert won.count(True) == 1
        sessions = [find_session(catalog, str(i) * 64) for i in range(5)]
        (session,) = [s for s in sessions if s is not None]
        assert session.key.key_id == "one"
        assert abs(session.ends_ms - session.key.read_ms - HOUR_MS) < 60_000

    def test_a_code_and_a_session_end(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        open_code(catalog, "c" * 64, "one", HOUR_MS)
        open_session(catalog, "s" * 64, "one", HOUR_MS)
        assert not redeem_code(catalog, "s" * 64, "t" * 64, HOUR_MS), "a session is no code"
        shift(catalog, tables.logins.c.expires_ms, -2 * HOUR_MS)
        assert not redeem_code(catalog, "c" * 64, "t" * 64, HOUR_MS)
        assert find_session(catalog, "s" * 64) is None
        with catalog.reading() as conn:
            assert conn.exec_driver_sql("SELECT COUNT(*) FROM logins").scalar() == 0, "what has ended is swept away"

    def test_logging_out_ends_one_session(self, catalog: Catalog) -> None:
        create_key(catalog, ONE)
        for token in ("s", "t"):
            open_session(catalog, token * 64, "one", HOUR_MS)
        end_session(catalog, "s" * 64)
        assert find_session(catalog, "s" * 64) is None
        session = find_session(catalog, "t" * 64)
        assert session is not None
        revoke_key(catalog, "one")
        dead = find_session(catalog, "t" * 64)
        assert dead is not None
        assert dead.key.state == "revoked"

    # kept answers

    def test_one_of_those_who_ask_the_same_does_it(self, catalog: Catalog) -> None:
        answers = together(6, lambda i: begin_answer(catalog, "a" * 64, "r" * 64, f"try-{i}"))
        assert answers.count(None) == 1
        assert {row.status for row in answers if row is not None} == {0}

    def test_an_answer_is_kept_for_who_asks_again(self, catalog: Catalog) -> None:
        assert begin_answer(catalog, "a" * 64, "r" * 64, "first") is None
        body = bytes(range(256)) * 300
        keep_answer(catalog, "a" * 64, "first", status=201, media_type="application/json", body=body)
        row = begin_answer(catalog, "a" * 64, "other", "second")
        assert row is not None
        assert (row.status, row.media_type, row.body, row.request_hash) == (201, "application/json", body, "r" * 64)
        assert begin_answer(catalog, "b" * 64, "r" * 64, "third") is None

    def test_a_failure_is_forgotten(self, catalog: Catalog) -> None:
        assert begin_answer(catalog, "a" * 64, "r" * 64, "first") is None
        drop_answer(catalog, "a" * 64, "another")
        assert begin_answer(catalog, "a" * 64, "r" * 64, "second") is not None
        drop_answer(catalog, "a" * 64, "first")
        assert begin_answer(catalog, "a" * 64, "r" * 64, "second") is None

    def test_who_died_is_replaced_and_keeps_nothing(self, catalog: Catalog) -> None:
        assert begin_answer(catalog, "a" * 64, "r" * 64, "first") is None
        shift(catalog, tables.idempotency_keys.c.started_ms, -IN_FLIGHT_MS - 60_000)
        assert begin_answer(catalog, "a" * 64, "r" * 64, "second") is None
        keep_answer(catalog, "a" * 64, "first", status=201, media_type="", body=b"late")
        answer = begin_answer(catalog, "a" * 64, "r" * 64, "third")
        assert answer is not None
        assert answer.status == 0

    def test_answers_are_kept_for_a_day(self, catalog: Catalog) -> None:
        for letter in ("a", "b"):
            assert begin_answer(catalog, letter * 64, "r" * 64, "first") is None
            keep_answer(catalog, letter * 64, "first", status=201, media_type="", body=b"")
        shift(catalog, tables.idempotency_keys.c.started_ms, -IN_FLIGHT_MS - 60_000)
        assert begin_answer(catalog, "a" * 64, "r" * 64, "second") is not None
        shift(catalog, tables.idempotency_keys.c.started_ms, -KEPT_MS)
        assert begin_answer(catalog, "a" * 64, "r" * 64, "second") is None
        with catalog.reading() as conn:
            rows = conn.execute(tables.idempotency_keys.select()).all()
        assert [row.key_hash for row in rows] == ["a" * 64], "the others are swept away"
