"""Pages that several followers want are made once, and what fails is not kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apiserver import cursor
from apiserver.cursor import Scope
from apiserver.moments import Moments
from apiserver.pull import PullRequest
from apiserver.stream.pages import SharedPages
from tistream.errors import InvalidInput
from tistream.testing.api_world import api_world
from tistream.testing.log_builder import TENANT

SCOPE = Scope(tenant=TENANT)


def test_equal_wishes_at_one_moment_share_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_world(tmp_path) as world:
        world.log.build(4, upto=world.log.cuts(4)[1])
        made: list[object] = []
        page = world.services.reader.page
        monkeypatch.setattr(world.services.reader, "page", lambda *a, **k: (made.append(a), page(*a, **k))[1])
        start = cursor.encode(SCOPE, world.log.start_ts)
        ask: dict[str, Any] = {"start_ts": None, "cursor": start, "options": {}, "limit": 100}
        request = PullRequest(scope=SCOPE, format="ndjson", **ask)
        moments, pages = Moments(world.services), SharedPages()
        moment = moments.now(TENANT)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: pages.make(world.services, request, moment), range(30)))
        assert len(made) == 1
        assert len({id(answer) for answer in found}) == 1
        others = [
            replace(request, format="canal-json"),
            replace(request, limit=50),
            replace(request, options={"null": "x"}),
        ]
        assert {pages.make(world.services, other, moment).content.to_pybytes() for other in others}
        assert len(made) == 4
        world.log.flush(world.log.cuts(4)[2])
        later = pages.make(world.services, replace(request, limit=200_000), moments.at(TENANT, moment.resolved + 1))
        assert later.resolved_ts > moment.resolved
        for _ in range(2):
            with pytest.raises(InvalidInput):
                pages.make(world.services, replace(request, options={"nonsense": "1"}), moment)
