"""Checks of a catalog by `tistream doctor`. Nothing is changed: neither tables nor a SQLite file are created.

reachable -> isolation -> clock -> durability, fail-over -> revision of the tables -> writable (a statement that matches
no row)
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, text
from sqlalchemy.exc import ArgumentError

from tistream.catalog.database.engine import Catalog, now_ms
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.database.server_settings import (
    CommitsNotDurable,
    fail_over,
    lost_in_a_crash,
    not_shown,
    refuse_galera,
)
from tistream.catalog.database.tables import events
from tistream.clock import Clock
from tistream.diagnostics.findings import Checklist, Finding, clock_skew, fail, least_offset_ms, ok, warn
from tistream.errors import NotFound
from tistream.release import ReleaseTooOld

_WANTED = "READ COMMITTED"
_NOTHING = events.delete().where(events.c.event_id < 0)


def check_catalog(url: str, clock: Clock) -> list[Finding]:
    """All checks; only the first when the catalog is unreachable."""
    opened, checklist = list[Catalog](), Checklist()
    try:
        if checklist.check("catalog", lambda: _reached(url, opened)):
            catalog = opened[0]
            checklist.check("isolation", lambda: _isolation(catalog))
            checklist.check("catalog clock", lambda: _clock(catalog, clock))
            checklist.check("durability", lambda: _durability(catalog))
            if checklist.findings[-1].facts:
                checklist.check("fail-over", lambda: _fail_over(catalog))
            checklist.check("migrations", lambda: _migrations(catalog))
            if checklist.findings[-1].facts.get("found"):
                checklist.check("catalog writes", lambda: _writes(catalog))
    finally:
        for catalog in opened:
            catalog.close()
    return checklist.findings


def _reached(url: str, into: list[Catalog]) -> Finding:
    refuse_missing(url)
    into.append(Catalog(url))
    with into[0].reading() as conn:
        version = ".".join(map(str, conn.dialect.server_version_info or ()))
        name = "MariaDB" if getattr(conn.dialect, "is_mariadb", False) else conn.dialect.name
        conn.execute(text("SELECT 1"))
    return ok(f"{name} {version} answers", database=name, version=version)


def refuse_missing(url: str) -> None:
    """Refuse a missing SQLite file, which opening would create."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return  # opening it raises
    file = parsed.database if parsed.get_backend_name() == "sqlite" else None
    if file and file != ":memory:" and not Path(file).is_file():
        raise NotFound(f"catalog {file} does not exist yet; the first service creates it", file=file)


def _isolation(catalog: Catalog) -> Finding:
    with catalog.reading() as conn:
        level = conn.get_isolation_level()
        if conn.dialect.name == "sqlite":
            return ok("SQLite: one writer at a time", isolation=level)
    if level != _WANTED:
        return fail(f"sessions are {level} and must be {_WANTED}", isolation=level)
    return ok(f"sessions are {level}", isolation=level)


def _clock(catalog: Catalog, clock: Clock) -> Finding:
    before = clock.unix_ms()
    with catalog.reading() as conn:
        there = now_ms(conn)
    return clock_skew("the database's", least_offset_ms(there, there + 1, before, clock.unix_ms()))


def _durability(catalog: Catalog) -> Finding:
    settings = catalog.server_settings()
    if settings is None:
        return ok("SQLite: what it confirms is on the disk")
    refuse_galera(settings)
    if weak := lost_in_a_crash(settings):
        words = f"a crash of its machine may take back confirmed transactions: {'; '.join(weak)}"
        return warn(words, code=CommitsNotDurable.code, **settings)
    if not_shown(settings):
        return warn("the server does not show how it writes its log: ask its operator", **settings)
    return ok("what the server confirms is on its disk", **settings)


def _fail_over(catalog: Catalog) -> Finding:
    settings = catalog.server_settings() or {}
    has_all, words = fail_over(settings)
    return ok(words, **settings) if has_all else warn(f"{words}; failing over to it is a restore", **settings)


def _migrations(catalog: Catalog) -> Finding:
    newest, there = MIGRATIONS.newest, catalog.revision()
    facts = {"found": there, "newest": newest}
    if there is None:
        return warn("no tables yet; the first service creates them", **facts)
    try:
        catalog.refuse_older()
    except ReleaseTooOld as e:
        return fail(e.message, **facts)
    if there == newest:
        return ok(f"tables are of this version ({newest})", **facts)
    if there in MIGRATIONS.revisions:
        words = f"tables are of revision {there}; the next service of this version migrates them to {newest}"
        return warn(words, **facts)
    return ok(f"tables are of revision {there}, of a later release that allows this one", **facts)


def _writes(catalog: Catalog) -> Finding:
    with catalog.transaction() as conn:
        conn.execute(_NOTHING)
    return ok("tables are writable")
