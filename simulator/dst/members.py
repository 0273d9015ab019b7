"""Processes that read a consumer as its members: they pull a page, work on it for a while, and acknowledge it.

They die, pause and run twice as the world's plan has it. Beside that a member's work now and then outlasts its lease;
it reads a page again instead of acknowledging it; an acknowledgement whose sender is long gone arrives once more; and
an operator moves the consumer back. A process is started under the name of the one before, or under a new one.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Protocol

from reading import member_page
from reading.consumer_cursor import parse_consumer_cursor
from reading.deps import Services
from reading.pull import PullRequest, pull
from simulator.dst.database import SimCatalog
from simulator.dst.member_rules import FEED, LEASE_MS, Hand, MemberRules, rows_of
from simulator.dst.oracle import COLUMNS
from simulator.dst.scheduler import Process
from simulator.dst.store import SimStore
from tistream.catalog.log import consumers
from tistream.catalog.tenancy.changefeeds import add_changefeed
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.errors import ErrorKind, Fenced, TiStreamError
from tistream.ids import Tenant

PARTITIONS = 4  # each has a table of the scenario
_SAME_NAME = 0.6  # of the starts of a process
_RESET = 0.02  # of the steps: an operator moves the consumer back
_ONCE_MORE = 0.1  # of the steps: an old acknowledgement arrives
_WORK_S = (0.0, 0.2, 0.2, 0.6, 1.4)  # on a page; the last outlasts the lease


class _World(Protocol):
    members: MemberRules
    resting: bool

    def tell(self, text: str) -> None: ...


class _Member:
    """One process."""

    def __init__(
        self, world: _World, process: Process, name: str, tenant: Tenant, services: Services, rand: random.Random
    ) -> None:
        self._world, self._process, self._name, self._tenant = world, process, name, tenant
        self._services, self._catalog, self._rand = services, services.catalog, rand
        self._rules = world.members
        self._session: int | None = None

    def register(self) -> bool:
        """Register the consumer. False while the tenant has not begun."""
        if not get_tenant(self._catalog, self._tenant).start_ts:
            return False
        add_changefeed(self._catalog, self._tenant, FEED, None, partitions=PARTITIONS)
        return True

    def step(self) -> None:
        """A page, from the pull to its acknowledgement. Fenced when the member was started again."""
        rand, resting = self._rand, self._world.resting
        if rand.random() < _RESET and not resting:
            self._reset()
        if rand.random() < _ONCE_MORE and self._rules.hands and not resting:
            self._acknowledge(rand.choice(self._rules.hands[-6:]))
        hand = self._pull()
        if hand is None:
            return
        self._process.scheduler.sleep(0.0 if resting else rand.choice(_WORK_S))
        if rand.random() < 0.1:
            return  # it reads again
        self._rules.hands.append(hand)
        while not self._acknowledge(hand):
            if rand.random() < 0.3:
                return  # it never learns whether that was heard

    def leave(self) -> None:
        """Stop in order."""
        if self._session is not None:
            consumers.leave(self._catalog, self._tenant, FEED, self._name, self._session)

    def _pull(self) -> Hand | None:
        claim = consumers.claim_partition(
            self._catalog, self._tenant, FEED, self._name, session=self._session, lease_ms=LEASE_MS
        )
        self._session, held = claim.session, claim.partition
        if held is None:
            return None
        limit = self._rand.choice((1, 2, 1000))
        asked = partial(PullRequest, start_ts=None, format="arrow", options={}, limit=limit)
        answer = pull(self._services, member_page.member_request(self._tenant, claim, held, asked))
        cursor = member_page.member_cursor(self._tenant, FEED, held, answer)
        hand = Hand(
            partition=held.number,
            epoch=held.epoch,
            after=held.checkpoint_ts,
            upto=cursor.ts,
            rows=rows_of(answer.content, COLUMNS),
            cursor=cursor.text(),
        )
        self._rules.delivered(self._process, hand)
        return hand

    def _acknowledge(self, hand: Hand) -> bool:
        """Send an acknowledgement. False when its reply was lost."""
        cursor = parse_consumer_cursor(hand.cursor, self._tenant, FEED)
        try:
            now = consumers.acknowledge(
                self._catalog,
                self._tenant,
                FEED,
                cursor.partition,
                epoch=cursor.epoch,
                ts=cursor.ts,
                amended=cursor.amended,
            )
        except Fenced as e:
            self._rules.fenced += 1
            self._world.tell(f"{self._name} is refused: {e}")
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            return False
        else:
            self._rules.accepted(hand, now.epoch)
        return True

    def _reset(self) -> None:
        """Move back to where an earlier page began."""
        places = sorted({hand.after for hand in self._rules.hands if hand.after <= self._rules.lowest})
        if places:
            to_ts = self._rand.choice(places[-4:])
            self._rules.resets.add(to_ts)
            self._world.tell(f"an operator moves the consumer back to {to_ts}")
            consumers.reset_consumer(self._catalog, self._tenant, FEED, to_ts)


def consume(
    world: _World,
    running: Any,
    tenant: Tenant,
    catalog: SimCatalog,
    store: SimStore,
    clock: Any,
    rand: random.Random,
) -> None:
    """The work of one process. Fenced when another was started under its name."""
    name = running.name if rand.random() < _SAME_NAME else f"{running.name}-{running.number}"
    member = _Member(world, running.process, name, tenant, Services.create(catalog, store, clock), rand)
    registered = False
    while not running.stopping.wait(0.02 + rand.random() * 0.2):
        try:
            registered = registered or member.register()
            if registered:
                member.step()
        except Fenced:
            world.members.fenced += 1
            raise
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                raise
    try:
        member.leave()
    except TiStreamError as e:
        if e.kind not in (ErrorKind.RETRY, ErrorKind.FENCED):
            raise
