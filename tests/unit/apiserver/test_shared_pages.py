"""Pages that several followers want are made once, and what fails is not kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from apiserver.stream import pages as shared
from apiserver.stream.pages import SharedPages
from reading.pages.request import PullAnswer, PullRequest
from reading.rows.scope import Scope
from reading.served import position
from reading.served.cache import ServedCache
from reading.served.position import Served
from tests.kit.api_world import api_world
from tests.kit.log_builder import TENANT
from tests.kit.overheard import overheard
from tistream.errors import InvalidInput

SCOPE = Scope(tenant=TENANT)


def test_equal_wishes_at_one_moment_share_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_world(tmp_path) as world:
        world.log.build(4, upto=world.log.cuts(4)[1])
        pages_made: list[object] = []
        monkeypatch.setattr(world.services.reader, "page", overheard(world.services.reader.page, pages_made))
        start = position.encode_cursor(SCOPE, world.log.start_ts)
        ask: dict[str, Any] = {"start_ts": None, "cursor": start, "options": {}, "limit": 100}
        request = PullRequest(scope=SCOPE, format="ndjson", **ask)
        moments, pages = ServedCache(world.services), SharedPages()
        moment = moments.now(TENANT)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: pages.make(world.services, request, moment), range(30)))
        assert len(pages_made) == 1
        assert len({id(answer) for answer in answers}) == 1
        others = [
            replace(request, format="canal-json"),
            replace(request, limit=50),
            replace(request, options={"null": "x"}),
        ]
        assert {pages.make(world.services, other, moment).content.to_pybytes() for other in others}
        assert len(pages_made) == 4
        world.log.flush(world.log.cuts(4)[2])
        later = pages.make(world.services, replace(request, limit=200_000), moments.at(TENANT, moment.resolved + 1))
        assert later.resolved_ts > moment.resolved
        cached = len(pages._pages)
        for nonsense in "12":
            with pytest.raises(InvalidInput):
                pages.make(world.services, replace(request, options={"nonsense": nonsense}), moment)
        assert len(pages._pages) == cached, "a page that cannot be made is not kept"


def test_a_page_that_is_dropped_while_it_is_made_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cursors: list[str] = []
    size = 20 << 20

    def big(_: object, request: PullRequest, __: object) -> PullAnswer:
        assert request.cursor is not None
        cursors.append(request.cursor)
        if request.cursor == "slow":  # two others come meanwhile, and it is dropped
            for other in ("a", "b"):
                pages.make(services, replace(request, cursor=other), moment)
        return answer(size)

    monkeypatch.setattr(shared, "pull", big)
    pages = SharedPages()
    services: Any = None
    request = PullRequest(scope=SCOPE, start_ts=None, cursor="slow", format="ndjson", options={}, limit=1)
    moment = Served(row=None, history=None, resolved=1, covers=1)  # type: ignore[arg-type]
    for _ in range(3):
        pages.make(services, request, moment)
    size = 1
    cursors.clear()
    for _ in range(5):
        for cursor_ in ("x", "y"):
            pages.make(services, replace(request, cursor=cursor_), moment)
    assert cursors == ["x", "y"]


def answer(size: int) -> PullAnswer:
    return PullAnswer(
        content=pa.py_buffer(bytes(size)),
        next_cursor="",
        resolved_ts=1,
        has_more=False,
        quarantined=0,
        waits=False,
        after=0,
        end=1,
    )
