"""A tenant whose objects are sealed, and a KMS that refuses, throttles and goes away.

    from the first       services seal from the beginning
    later                they begin in the middle of the run: plain objects stay and are read
    there and back       they begin, and later write plain objects again

Each process has a keyring, whose minute is shorter here. Roots and epochs are rotated all the time. Pushers write plain
files.

    sealed    what services write while they are to seal is sealed
    opened    no root is used longer than its life after the newest request that the KMS granted had begun

Every other rule of a run holds: a key that is refused is never damage, and after the grant everything continues.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from simulator.dst.aspect import Aspect
from simulator.dst.running import TENANT, SimClock
from simulator.dst.scheduler import Process
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.objectstore.layout import CommittedKey, CompactedKey, SchemasKey, SnapshotKey, parse
from tistream.objectstore.protocol import ObjectStore
from tistream.sealing.core import lifetimes
from tistream.sealing.core.derive import EpochId
from tistream.sealing.core.head import is_sealed
from tistream.sealing.files import open_object
from tistream.sealing.keyring import Keyring
from tistream.sealing.kms.protocol import Answer, KeyRefused, KmsUnavailable
from tistream.sealing.store import SealedStore

if TYPE_CHECKING:
    from simulator.dst.world import World

HOW = ("from the first", "later", "there and back")
_CALL_S = (0.0, 0.3)  #: that a request to the KMS takes
_REFUSES = "refuses the key"
_EPOCH_S = 0.5
_ROOT_S = 2.0
_GRANTED_S = 1.5  #: mean time between two faults of the KMS
_FAULT_S = (0.1, 2.5)
_WRITTEN = (CommittedKey, SnapshotKey, SchemasKey, CompactedKey)


class Sealed(Aspect):
    """The keys of one run, its KMS, and the rule."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = rand = random.Random(f"{world.seed}/sealed")
        self._how = rand.choice(HOW)
        self._secret = rand.randbytes(32)
        self._fault = ""  #: of the KMS, now
        self.current: EpochId | None = None
        self._counts = {"sealed": 0, "rotated": 0, "kms_faults": 0, "not_opened": 0}
        if self._how == "from the first":
            self.current = EpochId(root_no=1, epoch=1)
        world.oracle.rules.opened = self._opened

    def over(self, store: ObjectStore, role: str) -> ObjectStore:
        clock = SimClock(Process("keyring", self._world.scheduler), self._world.unix_ms, 0)
        return store if role == "pusher" else SealedStore(store, _Roots(self, clock))

    def start(self) -> None:
        world = self._world
        world.tell(f"sealing: {self._how}")
        s, length = world.scheduler, world.actions * world.profile.action_s
        if self._how != "from the first":
            s.call_at(s.now + length * self._rand.uniform(0.1, 0.5), lambda: self._seal(EpochId(root_no=1, epoch=1)))
        if self._how == "there and back":
            s.call_at(s.now + length * self._rand.uniform(0.6, 0.9), lambda: self._seal(None))
        self._rotate()
        s.call_at(s.now + self._rand.expovariate(1 / _GRANTED_S), self._fail)

    def rest(self) -> None:
        self._mend()

    def at_rest(self) -> None:
        if self._how == "from the first":
            for key, (data, _) in self._world.bucket.objects.items():
                if isinstance(parse(key), _WRITTEN) and not is_sealed(data):
                    self._world.oracle.violated(f"sealed: {key} is plain")

    def counts(self) -> dict[str, int]:
        return self._counts

    def ask(self) -> None:
        """Ask the KMS for a root; it decides when the request arrives, and its answer takes as long again."""
        s = self._world.scheduler
        takes_s = self._rand.uniform(*_CALL_S) / 2
        s.sleep(takes_s)
        fault = self._fault
        s.sleep(takes_s)
        if fault:
            self._counts["not_opened"] += 1
            raise (KeyRefused if fault == _REFUSES else KmsUnavailable)(f"the KMS {fault}")

    def violated(self, what: str) -> None:
        self._world.oracle.violated(what)

    def root(self, root_no: int) -> bytes:
        return bytes(byte ^ root_no for byte in self._secret)

    def sealing(self) -> EpochId | None:
        """What a process that writes is to seal under."""
        self._counts["sealed"] += self.current is not None
        return self.current

    def _opened(self, key: str, data: bytes) -> bytes:
        return bytes(open_object(data, lambda _, no: self.root(no), TENANT, key)) if is_sealed(data) else data

    def _seal(self, under: EpochId | None) -> None:
        self.current = under
        self._world.tell(f"services seal under {under}")

    def _rotate(self) -> None:
        s, at = self._world.scheduler, self.current
        if at is not None:
            self._counts["rotated"] += 1
            is_new = self._rand.random() < _EPOCH_S / _ROOT_S
            self.current = EpochId(root_no=at.root_no + is_new, epoch=at.epoch + 1)
        if not self._world.resting:
            s.call_at(s.now + _EPOCH_S, self._rotate)

    def _fail(self) -> None:
        if self._world.resting:
            return
        self._counts["kms_faults"] += 1
        self._fault = self._rand.choice((_REFUSES, "throttles", "does not answer"))
        self._world.tell(f"the KMS {self._fault}")
        s = self._world.scheduler
        s.call_at(s.now + self._rand.uniform(*_FAULT_S), self._mend)

    def _mend(self) -> None:
        s = self._world.scheduler
        if self._fault:
            self._fault = ""
            self._world.tell("the KMS opens again")
        if not self._world.resting:
            s.call_at(s.now + self._rand.expovariate(1 / _GRANTED_S), self._fail)


class _Roots:
    """The roots of one process."""

    def __init__(self, run: Sealed, clock: Clock) -> None:
        self._run, self._clock = run, clock
        self._keyring = Keyring(self._unwrap, clock)
        self._granted: dict[int, float] = {}  # root -> when the newest granted request began

    def has_sealed(self, tenant: Tenant) -> bool:
        return tenant == TENANT

    def current(self, tenant: Tenant) -> EpochId | None:
        return self._run.sealing()

    def root(self, tenant: Tenant, root_no: int) -> bytes:
        self._keyring.refresh()  # what a thread does in a deployment
        root = self._keyring.root(tenant, root_no)
        age_s = self._clock.monotonic() - self._granted[root_no]
        if age_s >= lifetimes.ROOT_LIFE_S:
            self._run.violated(f"opened: root {root_no} is used {age_s:.3f} s after the KMS's last grant")
        return root

    def _unwrap(self, tenant: Tenant, root_no: int) -> Answer:
        began_s = self._clock.monotonic()
        self._run.ask()
        self._granted[root_no] = began_s
        return Answer(root=self._run.root(root_no), wrapped=b"", request_id="")
