"""MariaDB and MySQL connections: session settings, pool, and errors that end a connection.

A host can disappear inside a transaction without closing its connection (power, cable, hypervisor). Only the server can
end that transaction, so it rolls back sessions that are idle for IDLE_S and frees their locks. LOCK_WAIT_S is below the
leader's lease, so a leader that meets such a lock still renews in time.

`max_sort_length` covers whole keys; by default the server sorts by the first 1,024 bytes only.

TLS: the driver encrypts when the server offers it. `?ssl_ca=FILE` in the address enforces it and verifies the server's
certificate and name.
"""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.engine.interfaces import IsolationLevel

from tistream.catalog.database.columns import KEY_BYTES_MAX
from tistream.limits import LEADER_LEASE_MS, LEASE_MS

CONNECTIONS_MAX = 15  #: per process
CONNECT_S = 10
LOCK_WAIT_S = 3
IDLE_S = 8  #: an idle session has lost its host after this time
SOCKET_WAIT_S = 60
POOL_WAIT_S = 30
RECYCLE_S = 60  #: maximal age of a connection: a name may resolve to another server after a failover

MIGRATION_IDLE_S = 60
MIGRATION_LOCK_WAIT_S = 60  #: for a table read by a long query or a backup
MIGRATION_SOCKET_WAIT_S = 3600  #: building an index of a large table

EXPORT_IDLE_S = 600  #: rows wait for the object store

assert LOCK_WAIT_S * 1000 < LEADER_LEASE_MS
assert IDLE_S * 1000 < LEASE_MS

# Sorting adds the length of a value to its bytes.
_SORT_BYTES = KEY_BYTES_MAX + 8

# The server became a replica (1290, 1792, 1836), leaves its cluster (1047), shuts down (1053), or closed the session
# (1927, 4031). A new connection may reach another server.
_ENDS_CONNECTION = frozenset({1047, 1053, 1290, 1792, 1836, 1927, 4031})


def mysql_engine(url: URL) -> Engine:
    """The engine of a service."""
    session = {"wait_timeout": IDLE_S, "lock_wait_timeout": MIGRATION_LOCK_WAIT_S}
    engine = _engine(url, session, socket_wait_s=SOCKET_WAIT_S, connections=CONNECTIONS_MAX)
    event.listen(engine, "handle_error", _end_connection)
    return engine


def migrating_engine(url: URL) -> Engine:
    """The engine of a migration: one connection with long timeouts."""
    session = {"wait_timeout": MIGRATION_IDLE_S, "lock_wait_timeout": MIGRATION_LOCK_WAIT_S}
    return _engine(url, session, socket_wait_s=MIGRATION_SOCKET_WAIT_S, connections=1)


def exporting_engine(url: URL) -> Engine:
    """The engine of an export: one connection whose transactions see one state, and whose reader may pause."""
    session = {"wait_timeout": EXPORT_IDLE_S, "net_write_timeout": EXPORT_IDLE_S}
    return _engine(url, session, socket_wait_s=SOCKET_WAIT_S, connections=1, isolation="REPEATABLE READ")


def _engine(
    url: URL,
    session: dict[str, int],
    *,
    socket_wait_s: int,
    connections: int,
    isolation: IsolationLevel = "READ COMMITTED",
) -> Engine:
    settings = {
        "time_zone": "'+00:00'",
        "sql_mode": "'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'",
        "innodb_lock_wait_timeout": LOCK_WAIT_S,
        "max_sort_length": _SORT_BYTES,
        "net_read_timeout": IDLE_S,
        "net_write_timeout": IDLE_S,
        **session,
    }
    return create_engine(
        url,
        isolation_level=isolation,
        pool_pre_ping=True,
        pool_size=connections,
        max_overflow=0,  # an overflow connection would cost more than the transaction it is made for
        pool_use_lifo=True,
        pool_recycle=RECYCLE_S,
        pool_timeout=POOL_WAIT_S,
        connect_args={
            "charset": "utf8mb4",
            "init_command": "SET SESSION " + ", ".join(f"{name} = {value}" for name, value in settings.items()),
            "connect_timeout": CONNECT_S,
            "read_timeout": socket_wait_s,
            "write_timeout": socket_wait_s,
        },
    )


def _end_connection(context: ExceptionContext) -> None:
    """Make the pool drop all connections: all lead to a server that became a replica."""
    args = getattr(context.original_exception, "args", ())
    if args and args[0] in _ENDS_CONNECTION:
        context.is_disconnect = True
