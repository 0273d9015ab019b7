"""The migrations of a release: what brings the tables of any earlier one to its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from tistream.catalog.database.compatibility import demand
from tistream.release import Release

_VERSIONS = table("alembic_version", column("version_num"))  # Alembic's own table
_REVISION = select(_VERSIONS.c.version_num)
_FILE = re.compile(r"v(\d{4})_\w+\.py")


@dataclass(frozen=True, slots=True)
class Migrations:
    """The migrations in a folder, as Alembic has them."""

    folder: Path

    @property
    def newest(self) -> str:
        """The revision that all of them lead to."""
        return max(self.revisions)

    @property
    def revisions(self) -> frozenset[str]:
        """All revisions; each is in the name of its file."""
        names = [file.name for file in (self.folder / "versions").iterdir()]
        return frozenset(matched[1] for name in names if (matched := _FILE.fullmatch(name)))

    def run(self, conn: Connection, to: str, release: Release) -> None:
        """Run what is missing up to a revision.

        Before the first statement of a migration the releases below its `min_release` are kept out, for good: MariaDB
        and MySQL commit what precedes a DDL statement, so they stay out when this process dies half-way."""
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(self.folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = conn
        if revision_of(conn) is None:
            command.upgrade(config, min(self.revisions))
        missing = ScriptDirectory.from_config(config).iterate_revisions(to, revision_of(conn))
        for script in reversed(list(missing)):
            demand(conn, by=release, lowest=Release.parse(script.module.min_release))
            command.upgrade(config, script.revision)


MIGRATIONS = Migrations(Path(__file__).parent / "migrations")


def revision_of(conn: Connection) -> str | None:
    """The revision of the tables; None when there are none, or not yet all of the first migration."""
    if not inspect(conn).has_table(_VERSIONS.name):
        return None
    return conn.execute(_REVISION).scalar()
