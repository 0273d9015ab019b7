"""What a member acknowledges ends where its page ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reading import member_page
from reading.consumer_cursor import parse_consumer_cursor
from reading.pull import PullAnswer
from simulator.dst.all_mutants import MUTANTS
from tistream.catalog.tenancy.core.consumer_group import Partition
from tistream.ids import Tenant

HELD = Partition(number=2, checkpoint_ts=10, amended=0, member="a", epoch=7)
PAGE = PullAnswer(
    content=pa.py_buffer(b""),
    next_cursor="",
    resolved_ts=90,
    has_more=True,
    quarantined=0,
    waits=False,
    after=10,
    end=40,
    seen=3,
)


def acknowledged() -> tuple[int, int, int, int]:
    text = member_page.member_cursor(Tenant(1, 2), "feed", HELD, PAGE).text()
    found = parse_consumer_cursor(text, Tenant(1, 2), "feed")
    return found.partition, found.epoch, found.ts, found.amended


def test_an_acknowledgement_ends_where_its_page_ends() -> None:
    assert acknowledged() == (2, 7, 40, 3)


def test_one_that_goes_beyond_the_page_is_noticed() -> None:
    with MUTANTS["acknowledged-beyond-page"].patch(), pytest.raises(AssertionError):
        test_an_acknowledgement_ends_where_its_page_ends()
