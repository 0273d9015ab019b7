"""Object keys: the only place that builds and parses them.

    data_change_buffer/cluster-{c}/tenant-{t}/schema_snap/{ts:020d}.json.zst
    data_change_buffer/cluster-{c}/tenant-{t}/store-{s}/{incarnation:06d}/file-{seq:012d}.seg
    committed/cluster-{c}/tenant-{t}/{sorter}-{incarnation:06d}/{seq:012d}.seg
    snapshots/cluster-{c}/tenant-{t}/task-{id}/{epoch:06d}-{n:012d}.seg
    schemas/cluster-{c}/tenant-{t}/{ts:020d}.json.zst
    seeds/cluster-{c}/tenant-{t}/{ts:020d}/{n:06d}.seg
    compacted/cluster-{c}/tenant-{t}/{job}/{range:05d}-{lo:020d}-{hi:020d}.parquet
    bases/cluster-{c}/tenant-{t}/{job}/{range:05d}-{ts:020d}-{n:06d}.seg
    keys/cluster-{c}/tenant-{t}/{root:06d}.json
    keys/cluster-{c}/tenant-{t}/{root:06d}-{n}.json
    data_change_buffer/cluster-{c}/tenant-{t}/probe/{name}
    exports/manifests/{generation:06d}-{leader_epoch:06d}-{export:012d}.json
    exports/pieces/{generation:06d}-{leader_epoch:06d}/{digest}.piece
    generations/{generation:06d}.json
    journal/{generation:06d}/{exports_begun:012d}/{ms:013d}-{name}.json
    doctor/{name}/{n}

Numbers are zero padded, so keys of one folder sort in write order. A dense `seq` makes a missing file visible and lets
a reader request the next key directly. The object store adds the optional bucket prefix of a deployment. Probes test
that the bucket is writable; they are not data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tistream.ids import Tenant

REPLAY_N_MIN = 1 << 48  #: the numbers of a replay's snapshot objects begin here, far above those of a sorter
_ID_MAX = (1 << 63) - 1
_TENANT = r"cluster-(?P<c>\d+)/tenant-(?P<t>\d+)"
_SCHEMA_SNAP = re.compile(rf"data_change_buffer/{_TENANT}/schema_snap/(?P<ts>\d{{20}})\.json\.zst")
_BATCH = re.compile(rf"data_change_buffer/{_TENANT}/store-(?P<s>\d+)/(?P<i>\d{{6,}})/file-(?P<n>\d{{12,}})\.seg")
_COMMITTED = re.compile(rf"committed/{_TENANT}/(?P<w>[A-Za-z0-9_.-]+)-(?P<i>\d{{6,}})/(?P<n>\d{{12,}})\.seg")
_SNAPSHOT = re.compile(rf"snapshots/{_TENANT}/task-(?P<k>\d+)/(?P<e>\d{{6,}})-(?P<n>\d{{12,}})\.seg")
_REPLAY = re.compile(r"replay-(?P<k>\d+)-(?P<e>\d+)-.*")
_SCHEMAS = re.compile(rf"schemas/{_TENANT}/(?P<ts>\d{{20}})\.json\.zst")
_SEED = re.compile(rf"seeds/{_TENANT}/(?P<ts>\d{{20}})/(?P<n>\d{{6,}})\.seg")
_COMPACTED = re.compile(
    rf"compacted/{_TENANT}/(?P<j>[A-Za-z0-9_.-]+)/(?P<r>\d{{5,}})-(?P<lo>\d{{20}})-(?P<hi>\d{{20}})\.parquet"
)
_PROBE = re.compile(rf"data_change_buffer/{_TENANT}/probe/(?P<p>[a-z0-9-]{{1,64}})")
_BASE = re.compile(rf"bases/{_TENANT}/(?P<j>[A-Za-z0-9_.-]+)/(?P<r>\d{{5,}})-(?P<ts>\d{{20}})-(?P<n>\d{{6,}})\.seg")
_WRAP = re.compile(rf"keys/{_TENANT}/(?P<r>\d{{6,}})(?:-(?P<n>[1-9]\d*))?\.json")
_EXPORT = re.compile(r"exports/manifests/(?P<g>\d{6,})-(?P<e>\d{6,})-(?P<n>\d{12,})\.json")
_EXPORT_PIECE = re.compile(r"exports/pieces/(?P<g>\d{6,})-(?P<e>\d{6,})/(?P<d>[0-9a-f]{64})\.piece")
_GENERATION = re.compile(r"generations/(?P<g>\d{6,})\.json")
_JOURNAL = re.compile(r"journal/(?P<g>\d{6,})/(?P<n>\d{12,})/(?P<ms>\d{13,})-(?P<x>[0-9a-f]{16})\.json")


def _scope(tenant: Tenant) -> str:
    return f"cluster-{tenant.cluster_id}/tenant-{tenant.tenant_id}"


def _tenant(m: re.Match[str]) -> Tenant:
    return Tenant(int(m["c"]), int(m["t"]))


def buffer_prefix(tenant: Tenant) -> str:
    """Folder of everything that a tenant's pushers write."""
    return f"data_change_buffer/{_scope(tenant)}/"


def schema_snap_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's pushed schema snapshots."""
    return f"{buffer_prefix(tenant)}schema_snap/"


def probe_prefix(tenant: Tenant) -> str:
    """Folder of the write probes of a tenant's pushers."""
    return f"{buffer_prefix(tenant)}probe/"


def examined_prefix(name: str) -> str:
    """Folder of the objects of a store check."""
    return f"doctor/{name}/"


def store_prefix(tenant: Tenant, store_id: int) -> str:
    """Folder of all batch files of a store, older incarnations first."""
    return f"{buffer_prefix(tenant)}store-{store_id}/"


def incarnation_prefix(tenant: Tenant, store_id: int, incarnation: int) -> str:
    """Folder of the batch files of one incarnation."""
    return f"{store_prefix(tenant, store_id)}{incarnation:06d}/"


def committed_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's committed files, of all sorters."""
    return f"committed/{_scope(tenant)}/"


def compacted_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's compacted files, of all jobs."""
    return f"compacted/{_scope(tenant)}/"


def bases_prefix(tenant: Tenant) -> str:
    """Folder of the bases of a tenant's tables, of all jobs."""
    return f"bases/{_scope(tenant)}/"


def snapshots_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's task snapshots."""
    return f"snapshots/{_scope(tenant)}/"


def seeds_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's seeds."""
    return f"seeds/{_scope(tenant)}/"


def seed_prefix(tenant: Tenant, ts: int) -> str:
    """Folder of a tenant's seeds of one timestamp."""
    return f"{seeds_prefix(tenant)}{ts:020d}/"


def wraps_prefix(tenant: Tenant) -> str:
    """Folder of the wrapped roots of a tenant."""
    return f"keys/{_scope(tenant)}/"


def exports_prefix() -> str:
    """Folder of the manifests of the catalog's exports, in the order in which a restore prefers them."""
    return "exports/manifests/"


def export_pieces_prefix(generation: int, leader_epoch: int) -> str:
    """Folder of what the exports of one leader consist of."""
    return f"exports/pieces/{generation:06d}-{leader_epoch:06d}/"


def generations_prefix() -> str:
    """Folder of the catalog's generations."""
    return "generations/"


def journal_prefix() -> str:
    """Folder of the catalog's journal, older exports first."""
    return "journal/"


def schemas_prefix(tenant: Tenant) -> str:
    """Folder of a tenant's saved schema histories."""
    return f"schemas/{_scope(tenant)}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSnapKey:
    """The tenant's whole schema at `ts`, pushed before its first batch file."""

    tenant: Tenant
    ts: int

    def __str__(self) -> str:
        return f"{schema_snap_prefix(self.tenant)}{self.ts:020d}.json.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKey:
    """One tick of one store. `seq` is dense within an incarnation, from 1."""

    tenant: Tenant
    store_id: int
    incarnation: int
    seq: int

    def __str__(self) -> str:
        return f"{incarnation_prefix(self.tenant, self.store_id, self.incarnation)}file-{self.seq:012d}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedKey:
    """One flush of one sorter for one tenant. Unread until its catalog row exists."""

    tenant: Tenant
    sorter: str
    incarnation: int
    seq: int

    def __str__(self) -> str:
        return f"committed/{_scope(self.tenant)}/{self.sorter}-{self.incarnation:06d}/{self.seq:012d}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotKey:
    """Buffered state of one task. `epoch` is the writer's, so a fenced writer cannot meet its successor's keys."""

    tenant: Tenant
    task_id: int
    epoch: int
    n: int

    def __str__(self) -> str:
        return f"snapshots/{_scope(self.tenant)}/task-{self.task_id}/{self.epoch:06d}-{self.n:012d}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasKey:
    """The schema history up to `ts`."""

    tenant: Tenant
    ts: int

    def __str__(self) -> str:
        return f"schemas/{_scope(self.tenant)}/{self.ts:020d}.json.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedKey:
    """Rows that existed at `ts`. Which `n` is what: see `tistream.codec.seed_file`."""

    tenant: Tenant
    ts: int
    n: int

    def __str__(self) -> str:
        return f"{seed_prefix(self.tenant, self.ts)}{self.n:06d}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedKey:
    """Range-ordered Parquet of one compaction job. `job` names the job and the try, so no two writers share a key."""

    tenant: Tenant
    job: str
    range_id: int
    lo_ts: int
    hi_ts: int

    def __str__(self) -> str:
        scope = _scope(self.tenant)
        return f"compacted/{scope}/{self.job}/{self.range_id:05d}-{self.lo_ts:020d}-{self.hi_ts:020d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseKey:
    """Rows that tables had at `ts`, as a compaction job wrote them. `job` names the job and the try."""

    tenant: Tenant
    job: str
    range_id: int
    ts: int
    n: int  #: from 1, within the range

    def __str__(self) -> str:
        return f"bases/{_scope(self.tenant)}/{self.job}/{self.range_id:05d}-{self.ts:020d}-{self.n:06d}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKey:
    """The manifest of one export of the catalog. A later leader's sort behind those of an earlier one."""

    generation: int
    leader_epoch: int
    export_no: int

    def __str__(self) -> str:
        return f"{exports_prefix()}{self.generation:06d}-{self.leader_epoch:06d}-{self.export_no:012d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPieceKey:
    """Rows of one table, named by what they contain, so that the exports of a leader share what did not change."""

    generation: int
    leader_epoch: int
    digest: str

    def __str__(self) -> str:
        return f"{export_pieces_prefix(self.generation, self.leader_epoch)}{self.digest}.piece"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationKey:
    """A generation of the catalog, opened by a restore."""

    generation: int

    def __str__(self) -> str:
        return f"{generations_prefix()}{self.generation:06d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalKey:
    """A deed that a restore must not lose. It is in every export of a number above `exports_begun`."""

    generation: int
    exports_begun: int
    ms: int  #: Unix milliseconds by the database's clock
    name: str  #: 16 hexadecimal digits, by chance

    def __str__(self) -> str:
        return f"{journal_prefix()}{self.generation:06d}/{self.exports_begun:012d}/{self.ms:013d}-{self.name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeKey:
    """Something put to see whether it may be put. Nothing follows from its being there."""

    tenant: Tenant
    name: str  #: small letters, digits and -

    def __str__(self) -> str:
        return f"{probe_prefix(self.tenant)}{self.name}"


def foreign_probe(tenant: Tenant, name: str) -> ProbeKey:
    """One in a neighbour's folder, which the tenant's pushers must not be able to put. The neighbour's name begins as
    the tenant's does, where there is such a name: a policy that forgets the slash lets it through."""
    longer = tenant.tenant_id * 10
    other = longer if 0 < longer <= _ID_MAX else tenant.tenant_id ^ 1
    return ProbeKey(tenant=Tenant(tenant.cluster_id, other), name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapKey:
    """Key of a wrapped root. `n`: 0 of the first wrap, then of each later one, by another KMS key."""

    tenant: Tenant
    root_no: int
    n: int = 0

    def __str__(self) -> str:
        again = f"-{self.n}" if self.n else ""
        return f"{wraps_prefix(self.tenant)}{self.root_no:06d}{again}.json"


FileKey = SchemaSnapKey | BatchKey | CommittedKey | SnapshotKey | SchemasKey | SeedKey | CompactedKey | BaseKey
TenantKey = FileKey | ProbeKey | WrapKey
AnyKey = TenantKey | ExportKey | ExportPieceKey | GenerationKey | JournalKey


def build_of(key: CompactedKey | BaseKey) -> int | None:
    """The number of the build that wrote the file (`tistream.catalog.log.builds`); None when its name has none."""
    number, dash, _ = key.job.partition("-")
    return int(number) if dash and number.isdecimal() else None


def replay_writer(task_id: int, epoch: int, attempt: str) -> str:
    """The name of a replay in the keys of committed files: it holds the task under this epoch."""
    return f"replay-{task_id}-{epoch}-{attempt}"


def replayed_under(key: CommittedKey | SnapshotKey) -> tuple[int, int] | None:
    """(task, epoch) of an object that a replay wrote; None of another one."""
    if isinstance(key, SnapshotKey):
        return (key.task_id, key.epoch) if key.n >= REPLAY_N_MIN else None
    match = _REPLAY.fullmatch(key.sorter)
    return None if match is None else (int(match["k"]), int(match["e"]))


def parse(key: str) -> AnyKey | None:
    """The key's parts, or None for a key that is not ours. `str(parse(key)) == key` for every key that parses."""
    parsed = _parse(key)
    return parsed if parsed is not None and str(parsed) == key else None


def _parse(key: str) -> AnyKey | None:
    if m := _BATCH.fullmatch(key):
        return BatchKey(tenant=_tenant(m), store_id=int(m["s"]), incarnation=int(m["i"]), seq=int(m["n"]))
    if m := _COMMITTED.fullmatch(key):
        return CommittedKey(tenant=_tenant(m), sorter=m["w"], incarnation=int(m["i"]), seq=int(m["n"]))
    if m := _SNAPSHOT.fullmatch(key):
        return SnapshotKey(tenant=_tenant(m), task_id=int(m["k"]), epoch=int(m["e"]), n=int(m["n"]))
    if m := _SCHEMA_SNAP.fullmatch(key):
        return SchemaSnapKey(tenant=_tenant(m), ts=int(m["ts"]))
    if m := _SCHEMAS.fullmatch(key):
        return SchemasKey(tenant=_tenant(m), ts=int(m["ts"]))
    if m := _PROBE.fullmatch(key):
        return ProbeKey(tenant=_tenant(m), name=m["p"])
    if m := _SEED.fullmatch(key):
        return SeedKey(tenant=_tenant(m), ts=int(m["ts"]), n=int(m["n"]))
    if m := _COMPACTED.fullmatch(key):
        return CompactedKey(tenant=_tenant(m), job=m["j"], range_id=int(m["r"]), lo_ts=int(m["lo"]), hi_ts=int(m["hi"]))
    if m := _BASE.fullmatch(key):
        return BaseKey(tenant=_tenant(m), job=m["j"], range_id=int(m["r"]), ts=int(m["ts"]), n=int(m["n"]))
    if m := _WRAP.fullmatch(key):
        return WrapKey(tenant=_tenant(m), root_no=int(m["r"]), n=int(m["n"] or 0))
    return _parse_of_catalog(key)


def _parse_of_catalog(key: str) -> AnyKey | None:
    if m := _EXPORT.fullmatch(key):
        return ExportKey(generation=int(m["g"]), leader_epoch=int(m["e"]), export_no=int(m["n"]))
    if m := _EXPORT_PIECE.fullmatch(key):
        return ExportPieceKey(generation=int(m["g"]), leader_epoch=int(m["e"]), digest=m["d"])
    if m := _GENERATION.fullmatch(key):
        return GenerationKey(generation=int(m["g"]))
    if m := _JOURNAL.fullmatch(key):
        return JournalKey(generation=int(m["g"]), exports_begun=int(m["n"]), ms=int(m["ms"]), name=m["x"])
    return None
