"""Settings of the MariaDB or MySQL server on which the catalog's guarantees rest.

A guarded update tells its caller that it alone may go on, so what the server has confirmed must stay. Two things break
that:

- Galera (`wsrep_on`), also in products that contain it: two nodes confirm updates of one row, and one of them is lost,
  in a cluster without any fault. It is refused at the start of every process and command.
- A server that confirms a transaction before it is on the disk. A crash of its machine then takes transactions back
  whose objects were published or deleted. It is a warning at the start, a problem of the leading meta server and a
  finding of `tistream doctor`, because the service runs as long as the machine does.

A replica that replaces the server without having every transaction is the second case as well; `fail_over` says what
the server does about it.

Servers name these settings differently, and do not all have them: one that is not shown is judged only where its
absence says something.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, text

from tistream.errors import ConfigError

_FLUSH, _SYNC_LOG, _LOG = "innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin"
_SEMI_SYNC = ("rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled")  # of MySQL from 8.0.26 on; of MariaDB
_WAIT_POINT = ("rpl_semi_sync_source_wait_point", "rpl_semi_sync_master_wait_point")
_READ = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("
    + ", ".join(f"'{name}'" for name in ("wsrep_on", _FLUSH, _SYNC_LOG, _LOG, *_SEMI_SYNC, *_WAIT_POINT))
    + ")"
)
_DURABLE_FLUSHES = {"1", "3"}  # 3 of MariaDB: as 1, with the group commit of an earlier version
_LACKS_ACKNOWLEDGED = "AFTER_COMMIT"  # readers see a transaction before a replica has it


class GaleraRefused(ConfigError):
    """The catalog's database is a node of a Galera cluster, which loses confirmed updates."""

    code = "TS-1043"
    hint = (
        "Use a MariaDB or MySQL server without wsrep, with semi-synchronous replicas for fail-over: "
        "docs/catalog.md#databases."
    )


class CommitsNotDurable(ConfigError):
    """A crash of the database's machine may take back transactions that the catalog has confirmed."""

    code = "TS-1044"
    hint = "Set what the message names, in the server's configuration: docs/catalog.md#databases."


def server_settings(conn: Connection) -> dict[str, str]:
    """The settings that the server shows, by lower-case name. No privilege is needed."""
    return {str(name).lower(): str(value) for name, value in conn.execute(_READ)}


def refuse_galera(settings: Mapping[str, str]) -> None:
    """GaleraRefused when the server replicates by Galera."""
    if _is_on(settings.get("wsrep_on", "OFF")):
        raise GaleraRefused(
            "The catalog's database is a node of a Galera cluster (wsrep_on=ON): it confirms updates that are lost "
            "afterwards, also without a fault.",
            wsrep_on=settings["wsrep_on"],
        )


def lost_in_a_crash(settings: Mapping[str, str]) -> list[str]:
    """Settings with which a crash of the server's machine takes back confirmed transactions, each with the value that
    is needed."""
    weak = []
    if settings.get(_FLUSH, "1") not in _DURABLE_FLUSHES:
        weak.append(f"{_FLUSH}={settings[_FLUSH]}, must be 1")
    if _is_on(settings.get(_LOG, "OFF")) and settings.get(_SYNC_LOG, "1") != "1":
        weak.append(f"{_SYNC_LOG}={settings[_SYNC_LOG]} with {_LOG}=ON, must be 1")
    return weak


def not_shown(settings: Mapping[str, str]) -> bool:
    """Whether the server hides how it writes its log."""
    return _FLUSH not in settings


def fail_over(settings: Mapping[str, str]) -> tuple[bool, str]:
    """Whether a replica that replaces the server has every confirmed transaction, or there can be no replica; and that
    in words."""
    if not _is_on(settings.get(_LOG, "OFF")):
        return True, "no binary log, so no replica of it can take over"
    if not any(_is_on(settings.get(name, "OFF")) for name in _SEMI_SYNC):
        return False, "semi-synchronous replication is off: a replica that takes over may lack the last transactions"
    if any(settings.get(name) == _LACKS_ACKNOWLEDGED for name in _WAIT_POINT):
        return False, "semi-synchronous with wait point AFTER_COMMIT: readers see what a replica may lack"
    return True, "semi-synchronous: a transaction is confirmed when a replica has it, or after the timeout"


def _is_on(value: str) -> bool:
    return value.upper() in ("ON", "1")
