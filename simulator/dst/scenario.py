"""What each profile plays: its upstream, the log that is read, its roles, and the aspects that it adds to the frame."""

from __future__ import annotations

from simulator.dst.anew import Anew
from simulator.dst.contradictions import Contradictions
from simulator.dst.deeds import Deeds
from simulator.dst.future import Future
from simulator.dst.lost import Lost
from simulator.dst.members import Members
from simulator.dst.mixed import Mixed
from simulator.dst.other_tenants import OtherTenants
from simulator.dst.profile import Profile
from simulator.dst.raw_reading import RawLog, raw_rules
from simulator.dst.replication import Replication
from simulator.dst.roles import roles_of, run_role
from simulator.dst.sealed import Sealed
from simulator.dst.sinking import Sinking
from simulator.dst.tidb_reading import TidbLog
from simulator.dst.upkeep import Upkeep
from simulator.dst.upstream import upstream_of
from simulator.dst.world import Parts


def parts_of(profile: Profile) -> Parts:
    """The parts of a world of this profile."""
    is_raw = profile.raw is not None
    aspects = [
        (profile.members, Members),
        (profile.replicators, Replication if is_raw else Sinking),
        (profile.maintainers, Upkeep),
        (profile.future, Future),
        (profile.mixed, Mixed),
        (profile.lost, Lost),
        (profile.lost, Deeds),
        (profile.sealed, Sealed),
        (profile.other_tenants, OtherTenants),
        (profile.anew, Anew),
        (profile.contradictions, Contradictions),
    ]
    return Parts(
        upstream=upstream_of,
        raw=raw_rules if is_raw else None,
        log=RawLog if is_raw else TidbLog,
        aspects=[kind for wanted, kind in aspects if wanted],
        roles=roles_of,
        run_role=run_role,
    )
