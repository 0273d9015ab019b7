"""Processes that read a consumer as its members: they pull a page, work on it for a while, and acknowledge it.

They die, pause and run twice as the world's plan has it. Beside that a member's work now and then outlasts its lease;
it reads a page again instead of acknowledging it; an acknowledgement whose sender is long gone arrives once more; and
an operator moves the consumer back. A process is started under the name of the one before, or under a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from reading.pages import member_page
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.served.consumer_cursor import parse_consumer_cursor
from reading.served.services import Services
from simulator.dst.aspect import Aspect
from simulator.dst.member_rules import FEED, LEASE_MS, Hand, MemberRules, rows_of
from simulator.dst.oracle import COLUMNS
from simulator.dst.running import TENANT, Running
from tistream.catalog.tenancy import consumers
from tistream.catalog.tenancy.consumers import add_consumer
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.errors import ErrorKind, Fenced, TiStreamError

if TYPE_CHECKING:
    from simulator.dst.world import World

PARTITIONS = 4  # each has a table of the scenario
_SAME_NAME = 0.6  # of the starts of a process
_RESET = 0.02  # of the steps: an operator moves the consumer back
_ONCE_MORE = 0.15  # of the steps: an old acknowledgement arrives
_WORK_S = (0.0, 0.2, 0.2, 0.6, 1.4)  # on a page; the last outlasts the lease


class Members(Aspect):
    """The consumer of a run, and its rules."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules = MemberRules(world.oracle.truth, world.oracle.violated)
        world.oracle.rules.more.append(self._rules)

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"member": self._consume}

    def processes(self) -> Iterable[tuple[str, str]]:
        return [("member", f"member-{i + 1}") for i in range(self._world.profile.members)]

    def has_all(self, upto: int) -> bool:
        return self._rules.lowest >= upto

    def at_rest(self) -> None:
        self._rules.at_rest(self._rules.lowest)

    def _consume(self, running: Running) -> None:
        """The work of one process. Fenced when another was started under its name."""
        rand = running.rand
        member = _Member(self._world, self._rules, running)
        registered = False
        while not running.stopping.wait(0.02 + rand.random() * 0.2):
            try:
                registered = registered or member.register()
                if registered:
                    member.step()
            except Fenced:
                self._rules.fenced += 1
                raise
            except TiStreamError as e:
                if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    raise
        try:
            member.leave()
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.FENCED):
                raise


class _Member:
    """One process."""

    def __init__(self, world: World, rules: MemberRules, running: Running) -> None:
        self._world, self._rules, self._process = world, rules, running.process
        self._catalog, self._rand = running.catalog, running.rand
        self._services = Services.create(running.catalog, running.store, running.clock)
        self._name = running.name if self._rand.random() < _SAME_NAME else f"{running.name}-{running.number}"
        self._session: int | None = None

    def register(self) -> bool:
        """Register the consumer. False while the tenant has not begun."""
        if not get_tenant(self._catalog, TENANT).start_ts:
            return False
        add_consumer(self._catalog, TENANT, FEED, None, partitions=PARTITIONS)
        return True

    def step(self) -> None:
        """A page, from the pull to its acknowledgement. Fenced when the member was started again."""
        rand, resting = self._rand, self._world.resting
        if rand.random() < _RESET and not resting:
            self._reset()
        if rand.random() < _ONCE_MORE and self._rules.hands:
            self._acknowledge(rand.choice(self._rules.hands[-16:]))
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
            consumers.leave(self._catalog, TENANT, FEED, self._name, self._session)

    def _pull(self) -> Hand | None:
        claim = consumers.claim_partition(
            self._catalog, TENANT, FEED, self._name, session=self._session, lease_ms=LEASE_MS
        )
        self._session, held = claim.session, claim.partition
        if held is None:
            return None
        limit = self._rand.choice((1, 2, 1000))
        asked = partial(PullRequest, start_ts=None, format="arrow", options={}, limit=limit)
        answer = pull(self._services, member_page.member_request(TENANT, claim, held, asked))
        cursor = member_page.member_cursor(TENANT, FEED, held, answer)
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
        cursor = parse_consumer_cursor(hand.cursor, TENANT, FEED)
        try:
            now = consumers.acknowledge(
                self._catalog,
                TENANT,
                FEED,
                cursor.partition,
                epoch=cursor.epoch,
                ts=cursor.ts,
                commit_position=cursor.commit_position,
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
            consumers.reset_consumer(self._catalog, TENANT, FEED, to_ts)
