"""The service token and its rotation."""

from __future__ import annotations

import pytest

from tests.kit.catalog_cases import elected, shift
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import service_tokens
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.service_tokens import accepted_tokens, rotate_service_token

DAY_MS = 86_400_000


class TestServiceTokens:
    def test_only_the_elected_meta_server_makes_one_and_only_when_it_is_due(self, catalog: Catalog) -> None:
        assert accepted_tokens(catalog) == ()
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=0) is None
        epoch = elected(catalog)
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) == 1
        (token,) = accepted_tokens(catalog)
        assert len(bytes.fromhex(token.secret)) == 32
        assert token.secret not in repr(token)
        shift(catalog, service_tokens.c.created_ms, 60_000 - DAY_MS)
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) is None
        shift(catalog, service_tokens.c.created_ms, -60_000)
        newer = acquire_leadership(catalog, "meta-1", starts=True)
        assert newer is not None
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) is None, "a replaced leader"
        assert accepted_tokens(catalog) == (token,)
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=newer) == 2

    def test_the_one_before_is_accepted_until_the_next_rotation(self, catalog: Catalog) -> None:
        epoch, seen = elected(catalog), []
        for number in (1, 2, 3):
            assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) == number
            seen.append(accepted_tokens(catalog))
            shift(catalog, service_tokens.c.created_ms, -DAY_MS)
        assert [[token.number for token in tokens] for tokens in seen] == [[1], [2, 1], [3, 2]]
        assert seen[2][1] == seen[1][0]
        assert len({token.secret for tokens in seen for token in tokens}) == 3

    @pytest.mark.parametrize(("ahead_ms", "due"), [(60_000, False), (DAY_MS + 60_000, True)])
    def test_a_clock_that_was_set_back_keeps_no_token_for_ever(
        self, catalog: Catalog, ahead_ms: int, due: bool
    ) -> None:
        epoch = elected(catalog)
        assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) == 1
        shift(catalog, service_tokens.c.created_ms, ahead_ms)
        assert (rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=epoch) is not None) == due
