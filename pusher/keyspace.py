"""What the push of a raw or txn tenant follows: the keys of one keyspace of an API V2 cluster, without a schema."""

from __future__ import annotations

from dataclasses import dataclass

from pusher.control import PushBundle
from pusher.tikv.core.requests import KvApi
from pusher.tikv_options import TikvPushOptions
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.pd import PdClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The keys of a cluster that a push follows, and how."""

    wanted: tuple[KeyRange, ...]
    excluded: tuple[KeyRange, ...] = ()
    kv_api: KvApi = KvApi.TIDB
    keyspace_id: int | None = None  #: of a raw or txn tenant

    @property
    def has_locks(self) -> bool:
        """Whether transactions write these keys."""
        return self.kv_api is KvApi.TIDB


def check_options(options: TikvPushOptions, bundle: PushBundle) -> None:
    """InvalidInput for an option that a push without a schema does not have."""
    given = {
        "--table or --database": bool(options.names),
        "--seed": options.seed,
        "--schema-snapshot": options.schema_snapshot is not None,
        "--start-ts": options.start_ts is not None,
        "--no-index-keys": not options.index_keys,
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        error = InvalidInput(f"{', '.join(wrong)} is for a cluster of TiDB, and this tenant is of kind {bundle.kind}")
        error.hint = "The first scan of a keyspace brings the newest version of every key: leave the option out."
        raise error


def keyspace_of(pd: PdClient, bundle: PushBundle, given: str | None) -> int:
    """The id of the tenant's keyspace. InvalidInput when `given`, a name, is another one, or it is not enabled."""
    name = given or bundle.keyspace_name
    if name is None or (bundle.keyspace_id is not None and given is None):
        if bundle.keyspace_id is None:
            raise InvalidInput("the tenant has no keyspace", kind=bundle.kind)
        return bundle.keyspace_id
    found_id = pd.enabled_keyspace(name)
    if bundle.keyspace_id not in (None, found_id):
        raise InvalidInput(
            f"the tenant is keyspace {bundle.keyspace_id}, and PD knows {name} as {found_id}", keyspace=name
        )
    return found_id


def followed_keys(bundle: PushBundle, keyspace_id: int) -> Followed:
    """The keys of a tenant whose keyspace is known."""
    if bundle.kind == "raw":
        return Followed(wanted=(bundle.range,), kv_api=KvApi.RAW, keyspace_id=keyspace_id)
    return Followed(wanted=(bundle.range,), keyspace_id=keyspace_id)
