"""The migrations of a release: what brings the tables of any earlier one to its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, inspect, select, table

from tistream.catalog.database.compatibility import demand
from tistream.catalog.database.release_tables import catalog_release
from tistream.errors import CatalogUnavailable, ConfigError, TiStreamError
from tistream.release import Release

if TYPE_CHECKING:
    from alembic.config import Config

_VERSIONS = table("alembic_version", column("version_num"))  # Alembic's own table
_REVISION = select(_VERSIONS.c.version_num)
_FILE = re.compile(r"v(\d{4})_\w+\.py")
_STATEMENT_SHOWN = 160  #: characters of the statement that failed


class MigrationFailed(CatalogUnavailable):
    """A migration of the catalog has failed. What it has done stays, and processes of the release before continue."""

    code = "TS-1053"
    hint = "Remove the cause and run tistream upgrade again: it begins with this migration."


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One that has not run yet."""

    revision: str
    title: str  #: what it does, in a line
    min_release: Release  #: the lowest release that may run on its tables


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

    def missing(self, revision: str | None, to: str | None = None) -> list[Migration]:
        """What brings tables of this revision to another, or to the newest. Nothing for those of a later release.
        MigrationFailed when the files do not fit together."""
        from alembic.script import ScriptDirectory

        if revision is not None and revision not in self.revisions:
            return []
        try:
            files = ScriptDirectory.from_config(self._config())
            scripts = list(files.iterate_revisions(to or self.newest, revision or "base"))
            return [
                Migration(
                    revision=script.revision,
                    title=(script.doc or "").partition("\n")[0],
                    min_release=Release.parse(script.module.min_release),
                )
                for script in reversed(scripts)
            ]
        except Exception as e:  # of Alembic, or of Python, which finds them wrong
            raise MigrationFailed("The migrations of this installation cannot be read.", **_facts(e)) from e

    def run(
        self, conn: Connection, to: str, release: Release, note: Callable[[Migration], object] = lambda _: None
    ) -> None:
        """Run what is missing up to a revision, and `note` each before it begins. MigrationFailed when one fails.

        Before the first statement of a migration the releases that cannot run beside it are kept out, for good: MariaDB
        and MySQL commit what precedes a DDL statement, so they stay out when this process dies half-way."""
        from alembic import command

        config, failed = self._config(), ""
        config.attributes["connection"] = conn
        try:
            for migration in self.missing(revision_of(conn), to):
                failed = migration.revision
                note(migration)
                if failed != min(self.revisions):  # which makes the table that says who may run
                    demand(conn, by=release, lowest=lowest_beside(migration, release))
                command.upgrade(config, migration.revision)
        except TiStreamError:
            raise
        except Exception as e:  # the driver's, Alembic's, or a defect of the migration
            raise MigrationFailed(f"Migration {failed} of the catalog has failed.", **_facts(e)) from e

    def _config(self) -> Config:
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(self.folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        return config


MIGRATIONS = Migrations(Path(__file__).parent / "migrations")


def lowest_beside(migration: Migration, release: Release) -> Release:
    """The lowest release that may run once this release has begun with the migration: its tables may allow more than
    the neighbour, but what else is written is only tested with that one."""
    return max(migration.min_release, release.neighbour)


def revision_of(conn: Connection) -> str | None:
    """The revision of the tables; None when there are none, or not yet all of the first migration. ConfigError for the
    tables of another program that uses Alembic."""
    tables = inspect(conn)
    if not tables.has_table(_VERSIONS.name):
        return None
    revision = conn.execute(_REVISION).scalar()
    if revision is not None and not tables.has_table(catalog_release.name):
        raise ConfigError(
            "This database has the tables of another program. Name an empty one: catalog.url.", revision=revision
        )
    return revision


def _facts(error: Exception) -> dict[str, str]:
    """The cause and the statement. A migration's statements have no parameters of tenants."""
    facts = {"cause": str(getattr(error, "orig", None) or error) or type(error).__name__}
    if statement := getattr(error, "statement", None):
        facts["statement"] = " ".join(str(statement).split())[:_STATEMENT_SHOWN]
    return facts
