"""Settings: one frozen tree from a TOML file, TISTREAM_* variables and flags; the later source wins.

    [server]               TISTREAM_SERVER_PORT=8711          --port 8711
    port = 8711

Names carry their unit. An unknown key is an error that suggests the nearest known one. Relations between settings are
checked here, so that no process starts with a configuration that cannot work. Built only in the composition root.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tistream.errors import ConfigError
from tistream.limits import CLOCK_SKEW_MAX_MS, LEADER_LEASE_MS, WAITING_BYTES_MAX

ENV_PREFIX = "TISTREAM_"

_ROLE = re.compile(r"arn:[a-z-]+:iam::\d{12}:role/[\w+=,.@/-]+")
_KMS_KEY = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CatalogSettings(_Section):
    """Where the catalog is."""

    url: str = Field("", description="sqlite:////abs/file.db or mysql+pymysql://user:password@host:port/database")
    clock_skew_max_ms: int = Field(
        CLOCK_SKEW_MAX_MS,
        ge=0,
        le=86_400_000,
        description="how far pushers' timestamps may be ahead of the catalog's clock; what is further ahead waits",
    )


class ObjectStoreSettings(_Section):
    """Where the bucket is."""

    url: str = Field("", description="file:///abs/folder, s3://bucket/prefix?endpoint=...&region=..., or memory://")


class ExportsSettings(_Section):
    """Exports of the catalog into the bucket, by the leading meta server. Objects are deleted once the newest verified
    export has the decision, so a catalog that is restored from it misses none."""

    interval_s: float = Field(300, ge=0, description="how often the catalog is exported; 0 = never")
    keep: int = Field(12, ge=1, le=10_000, description="exports to keep")
    key_file: str = Field(
        "",
        description="file with 64 hexadecimal digits, the key that exports and journal are sealed with, the same for "
        "meta and API servers; empty = not sealed",
    )
    waiting_bytes_max: int = Field(
        WAITING_BYTES_MAX,
        ge=1 << 20,
        description="when replaced objects of more bytes only wait for an export, one is made at once",
    )


class ServerSettings(_Section):
    """The HTTP port of an API server: every route, and the console."""

    host: str = Field("127.0.0.1", description="address to listen on; other than loopback needs authentication")
    port: int = Field(8711, ge=0, le=65535, description="port to listen on; 0 = any free one")
    auth: Literal["none", "keys"] = Field(
        "none", description="keys: each request needs an API key; none: no authentication"
    )
    slow_consumer_s: float = Field(
        30, gt=0, description="seconds after which a client that reads nothing is disconnected"
    )
    address_connections_max: int = Field(
        4096,
        ge=1,
        description="open connections of one address (IPv6: of one /64); half of the limit of open files at most",
    )
    caller_streams_max: int = Field(
        256, ge=1, description="open streams of one caller; the console's tabs have a limit of the same size"
    )
    caller_waits_max: int = Field(1024, ge=1, description="waiting pulls of one caller")
    caller_requests_per_s: float = Field(0, ge=0, description="requests of one caller; 0 = no bound")
    caller_mib_per_s: float = Field(0, ge=0, description="MiB sent to one caller; 0 = no bound")
    tenant_requests_per_s: float = Field(0, ge=0, description="requests for one tenant; 0 = no bound")
    tenant_mib_per_s: float = Field(0, ge=0, description="MiB sent of one tenant; 0 = no bound")
    rate_burst_s: float = Field(10, gt=0, description="burst above these rates, in seconds")
    read_memory_mib: int = Field(
        1024, ge=256, description="MiB that reads of the log may hold at once; half of it for one tenant"
    )


class DispatcherSettings(_Section):
    """Settings of a dispatcher."""

    host: str = Field("127.0.0.1", description="address of the Flight port")
    port: int = Field(0, ge=0, le=65535, description="Flight port; 0 = any free one")
    advertise_host: str = Field("", description="host under which sorters reach the Flight port; empty = the same host")
    poll_interval_ms: int = Field(100, ge=10, description="pause before the next file is polled again")
    reclaim_interval_ms: int = Field(5_000, ge=100, description="how often consumed batch files are deleted")
    drain_timeout_s: int = Field(
        60, ge=0, description="seconds that SIGTERM waits for its stores to be moved away; 0 = none"
    )


class FeedSettings(_Section):
    """TLS between sorters and dispatchers, both with a certificate (mTLS). All three files, or none: without them the
    feed is not encrypted. Files that change are read again. A service token is needed either way."""

    tls_certificate: str = Field("", description="PEM file with this process's certificate chain")
    tls_key: str = Field("", description="PEM file with its private key")
    tls_ca: str = Field("", description="PEM file with the CA that signs the certificates of the other side")
    tls_peer_name: str = Field(
        "",
        description="DNS name that the other side's certificate must have; empty: for a sorter the host of the "
        "dispatcher's address, for a dispatcher any name",
    )


class SorterSettings(_Section):
    """Settings of a sorter."""

    flush_interval_ms: int = Field(200, ge=10, description="how often an advanced watermark is flushed")
    snapshot_interval_ms: int = Field(10_000, ge=100, description="how often changed buffers are saved")
    memory_mb: int = Field(
        0,
        ge=0,
        description="MiB of buffered rows in memory, the rest spills to local disk; 0 = a quarter of the memory",
    )
    drain_timeout_s: int = Field(
        60, ge=0, description="seconds that SIGTERM waits for its tasks to be moved away; 0 = none"
    )
    spill_folder: str = Field("", description="folder for spilled rows; empty = the system's temporary folder")


class MetaSettings(_Section):
    """Settings of a meta server."""

    data_tasks: int = Field(2, ge=1, le=1024, description="data tasks of a new tenant")
    interval_ms: int = Field(300, ge=50, le=LEADER_LEASE_MS // 3, description="how often assignments are checked")
    retention_hours: float = Field(
        168,
        ge=0,
        description="hours of log to keep for tenants without their own retention; 0 = all. API servers show it: give"
        " them the same",
    )
    retention_interval_s: float = Field(600, ge=1, description="how often logs are cut to their retention")
    collect_interval_s: float = Field(600, ge=1, description="how often replaced and orphaned objects are deleted")
    collect_grace_s: float = Field(
        3600,
        ge=0,
        description="how long they stay before that: a catalog that is restored from a younger backup still finds"
        " its objects",
    )
    split_mb_per_s: float = Field(
        16, ge=0, description="split a data task that exceeds this for split_after_s; 0 = never"
    )
    split_after_s: float = Field(30, ge=1, description="how long a task must be hot before it is split")
    merge_mb_per_s: float = Field(
        1, ge=0, description="merge two neighbours whose sum stays below this for merge_after_s; 0 = never"
    )
    merge_after_s: float = Field(600, ge=1, description="how long both neighbours must be cold before they are merged")
    tasks_max: int = Field(64, ge=1, le=1024, description="most data tasks of a tenant")
    audit_retention_s: int = Field(
        400 * 86_400, ge=0, description="seconds that entries of the audit log are kept; 0 = for ever"
    )
    service_token_hours: float = Field(
        24, gt=0, description="how often the service token is replaced; the one before stays valid as long again"
    )


class MaintenanceSettings(_Section):
    """Merges of small files, table snapshots (bases) and replays: scheduled by the leading meta server, done by
    executors (`tistream maintain`, `tistream spark`, and threads of `tistream up`)."""

    enabled: bool = Field(True, description="schedule jobs; without it only commands run them")
    interval_s: float = Field(30, ge=1, description="how often the needs of tenants are counted")
    pause_s: float = Field(60, ge=1, description="seconds between two jobs of one kind for a tenant")
    lag_s: float = Field(60, ge=0, description="seconds at the end of the log that are left alone")
    jobs_max: int = Field(8, ge=1, le=1000, description="jobs that are open at once, of all tenants")
    mb_per_s: float = Field(
        32, gt=0, description="MiB a second that all jobs may read, on average over ten minutes of wall-clock time"
    )
    threads_job_mb: int = Field(
        256, ge=1, description="MiB that a job reads at most; a live Spark executor gets larger ones as one job"
    )
    spark_job_mb: int = Field(8192, ge=1, description="MiB that a job for Spark reads at most")
    merge_files_min: int = Field(16, ge=2, description="small files of a tenant that are worth a merge")
    saved_per_mb_min: float = Field(
        0.25, ge=0, description="requests that a merge must save a reader for each MiB that it rewrites"
    )
    base_tail_mb: float = Field(4, ge=0, description="MiB of log since the newest base that are worth bases ...")
    base_tail_ratio: float = Field(1, ge=0, description="... if they are also this many times an average base")
    base_window_hours: float = Field(168, ge=0, description="hours of log in which each moment keeps a base near it")
    replay: Literal["off", "offer", "run"] = Field(
        "offer", description="for a tenant far behind: offer a replay for an operator to start, run it, or neither"
    )
    replay_lag_s: float = Field(600, ge=1, description="a tenant is far behind with this lag ...")
    replay_backlog_mb: float = Field(1024, ge=1, description="... and this many MiB of unread batch files")
    threads: int = Field(1, ge=0, le=64, description="jobs at once in `tistream up`, at low priority; 0 = none")


class PushSettings(_Section):
    """Session credentials of pushers for an S3 bucket: one role, limited to the tenant's prefix."""

    role_arn: str = Field(
        "",
        description="role whose session credentials the service issues; empty = pushers use their own credentials",
    )
    duration_s: int = Field(3600, ge=900, le=3600, description="lifetime of session credentials")
    sts_endpoint: str = Field("", description="address of STS; empty = AWS in the region of the bucket")
    kms_key_arn: str = Field(
        "", description="KMS key that pushers must encrypt with; empty = none; needs push.role_arn"
    )


class NotificationsSettings(_Section):
    """Notifications of new files by the S3 server, in an SQS queue that meta servers read or sent to the API server.
    They make dispatchers and the meta server look at once; without them, or if some are lost, these look as before."""

    sqs_queue_url: str = Field("", description="queue with the bucket's notifications; empty = none")
    sqs_endpoint: str = Field("", description="address of SQS; empty = AWS in the region of the bucket")
    webhook_token: str = Field(
        "", description="token for POST /v1/notifications of the API server; empty = there is no such address"
    )
    floor_s: float = Field(
        30, ge=1, description="pause between looks for the next file of an idle store whose files are announced"
    )


class ReplicationSettings(_Section):
    """The role that writes changefeeds to their destinations (`tistream replicate`, and threads of `tistream up`)."""

    threads: int = Field(4, ge=0, le=256, description="lanes that are written at once; 0 = none in `tistream up`")
    drain_timeout_s: int = Field(30, ge=0, description="seconds that SIGTERM waits for lanes to move to other workers")
    memory_mib: int = Field(
        1024,
        ge=256,
        description="MiB that changes of all lanes may hold at once; one transaction at most a quarter",
    )


class OutboundSettings(_Section):
    """What the service may open for administrators of tenants, beside what operators allow for each tenant. API servers
    and workers of changefeeds need the same."""

    allow: str = Field(
        "",
        description="targets that every tenant may use, one a line: s3://BUCKET/PREFIX, https://HOST/BUCKET, "
        "tikv://HOST:PORT, file:///FOLDER; empty = none",
    )
    networks: str = Field(
        "",
        description="networks, such as 10.2.0.0/16, to which an allowed name may resolve; to public addresses it "
        "always may",
    )


class SparkSettings(_Section):
    """The role that does maintenance jobs on Spark."""

    master: str = Field(
        "", description="local[*], spark://host:7077 or k8s://https://host:6443; empty = as Spark's own files say"
    )
    conf: str = Field("", description="settings of Spark, NAME=VALUE, one a line")
    jobs: int = Field(2, ge=1, le=64, description="jobs at once in the session")
    stop_timeout_s: int = Field(10, ge=1, description="seconds that SIGTERM waits before jobs are given back")
    scratch_folder: str = Field("", description="folder for Spark's temporary files; empty = Spark's choice")


class MetricsSettings(_Section):
    """The port for probes and metrics of a service, with the TLS of [tls]. It asks for no key: keep it on a private
    network. An API server also serves them on its HTTP port, where `/metrics` asks for a key."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(-1, ge=-1, le=65535, description="port to listen on; 0 = any free one, -1 = none")


class TlsSettings(_Section):
    """TLS of the HTTP ports of a service: API, console, probes and metrics. Files that change are read again. The
    Flight port of a dispatcher has its own, [feed]."""

    cert: str = Field("", description="PEM file with the certificate chain of the HTTP ports; empty = no TLS")
    key: str = Field("", description="PEM file with its private key")
    client_ca: str = Field(
        "",
        description="PEM file with the CA whose certificates clients must present (mutual TLS); /livez and /readyz"
        " answer without one",
    )


class InsecureSettings(_Section):
    """What is refused unless it is asked for."""

    listen: bool = Field(
        False,
        description="listen on other addresses than loopback although a port has no TLS; keys and rows can be read",
    )


class LogSettings(_Section):
    """Logs go to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level to write")
    format: Literal["auto", "json", "pretty"] = Field("auto", description="auto: pretty on a terminal, else json")
    access: bool = Field(False, description="log every HTTP request")


class Settings(_Section):
    """The whole tree."""

    catalog: CatalogSettings = CatalogSettings()
    object_store: ObjectStoreSettings = ObjectStoreSettings()
    exports: ExportsSettings = ExportsSettings()
    server: ServerSettings = ServerSettings()
    dispatcher: DispatcherSettings = DispatcherSettings()
    feed: FeedSettings = FeedSettings()
    sorter: SorterSettings = SorterSettings()
    meta: MetaSettings = MetaSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    push: PushSettings = PushSettings()
    notifications: NotificationsSettings = NotificationsSettings()
    replication: ReplicationSettings = ReplicationSettings()
    outbound: OutboundSettings = OutboundSettings()
    spark: SparkSettings = SparkSettings()
    metrics: MetricsSettings = MetricsSettings()
    tls: TlsSettings = TlsSettings()
    insecure: InsecureSettings = InsecureSettings()
    log: LogSettings = LogSettings()


def known_keys() -> dict[str, str]:
    """Dotted key -> description, for every setting."""
    return {
        f"{section}.{name}": info.description or ""
        for section, holder in Settings.model_fields.items()
        for name, info in _fields(holder.default).items()
    }


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Settings from a file, the environment and flags (dotted key -> value; None = not given)."""
    tree: dict[str, dict[str, Any]] = {}
    for source, key, value in [*_from_file(path), *_from_env(environ or {}), *_from_flags(flags or {})]:
        section, _, name = key.partition(".")
        if key not in known_keys():
            raise ConfigError(f"{source}: unknown setting '{key}'.{suggest(key)}")
        tree.setdefault(section, {})[name] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"Setting '{key}': {first['msg']} (given: {first['input']!r}).") from e
    return _validate(settings)


def sources(path: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Setting -> the file or variable that sets it; settings with their default are not listed."""
    return {key: source for source, key, _ in [*_from_file(path), *_from_env(environ)]}


def _validate(settings: Settings) -> Settings:
    server = settings.server
    if server.auth == "none" and server.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"server.auth = none is allowed on loopback only, not on '{server.host}'.")
    _validate_push(settings.push, settings.object_store.url)
    _validate_notifications(settings.notifications, settings.object_store.url)
    files = (settings.feed.tls_certificate, settings.feed.tls_key, settings.feed.tls_ca)
    if any(files) and not all(files):
        raise ConfigError("feed.tls_certificate, feed.tls_key and feed.tls_ca are set together, or none of them.")
    tls = settings.tls
    if bool(tls.cert) != bool(tls.key):
        raise ConfigError("tls.cert and tls.key (--tls-cert, --tls-key) are set together, or none of them.")
    if tls.client_ca and not tls.cert:
        raise ConfigError("tls.client_ca (--tls-client-ca) needs tls.cert and tls.key.")
    if settings.feed.tls_peer_name and not all(files):
        raise ConfigError("feed.tls_peer_name needs feed.tls_certificate, feed.tls_key and feed.tls_ca.")
    return settings


def _validate_push(push: PushSettings, store_url: str) -> None:
    if push.role_arn and not _ROLE.fullmatch(push.role_arn):
        raise ConfigError(f"push.role_arn must have the form arn:aws:iam::ACCOUNT:role/NAME, not '{push.role_arn}'.")
    if push.kms_key_arn and not _KMS_KEY.fullmatch(push.kms_key_arn):
        raise ConfigError(
            f"push.kms_key_arn must have the form arn:aws:kms:REGION:ACCOUNT:key/ID, not '{push.kms_key_arn}'."
        )
    if push.kms_key_arn and not push.role_arn:
        raise ConfigError("push.kms_key_arn needs push.role_arn: it restricts session credentials.")
    if push.sts_endpoint and not push.sts_endpoint.startswith(("https://", "http://")):
        raise ConfigError("push.sts_endpoint must begin with https:// or http://.")
    if push.role_arn and store_url and not store_url.startswith("s3://"):
        raise ConfigError("push.role_arn needs an S3 bucket in object_store.url.", object_store=store_url)


def _validate_notifications(notifications: NotificationsSettings, store_url: str) -> None:
    token = notifications.webhook_token
    if token and not re.fullmatch(r"[!-~]{16,200}", token):
        raise ConfigError("notifications.webhook_token must have 16 to 200 printable ASCII characters, without spaces.")
    if (token or notifications.sqs_queue_url) and store_url and not store_url.startswith("s3://"):
        raise ConfigError("notifications need an S3 bucket in object_store.url.", object_store=store_url)


def _from_file(path: Path | None) -> list[tuple[str, str, object]]:
    if path is None:
        return []
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as e:
        raise ConfigError(f"Cannot read {path}: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not TOML: {e}.") from e
    out: list[tuple[str, str, object]] = []
    for section, values in tree.items():
        if isinstance(values, dict):
            out += [(str(path), f"{section}.{name}", value) for name, value in values.items()]
        else:
            out.append((str(path), section, values))
    return out


def _from_env(environ: Mapping[str, str]) -> list[tuple[str, str, object]]:
    names = {ENV_PREFIX + key.replace(".", "_").upper(): key for key in known_keys()}
    out: list[tuple[str, str, object]] = []
    for name, value in environ.items():
        if name in names:
            out.append((name, names[name], value))
        elif name.startswith(ENV_PREFIX):
            near = difflib.get_close_matches(name, names, n=1)
            raise ConfigError(f"Unknown setting {name}." + (f" Did you mean {near[0]}?" if near else ""))
    return out


def _from_flags(flags: Mapping[str, object]) -> list[tuple[str, str, object]]:
    return [("flag", key, value) for key, value in flags.items() if value is not None]


def _fields(section: BaseModel) -> dict[str, Any]:
    return dict(type(section).model_fields)


def suggest(key: str) -> str:
    """A sentence that suggests the nearest setting; empty when none is near."""
    near = difflib.get_close_matches(key, known_keys(), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""
