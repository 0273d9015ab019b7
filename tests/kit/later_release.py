"""A later release, as its migrations and its release number make it: what processes of this release meet."""

from __future__ import annotations

import shutil
from pathlib import Path

from tistream.catalog.database.revisions import MIGRATIONS, Migrations
from tistream.release import THIS_RELEASE, Release

NEWEST = MIGRATIONS.newest
REVISION = f"{int(NEWEST) + 1:04}"  #: of the migration that the later release adds
FIRST = Release(0, 1, 0)
NEXT_MINOR = Release(THIS_RELEASE.major, THIS_RELEASE.minor + 1, 0)
AFTER_THAT = Release(THIS_RELEASE.major, THIS_RELEASE.minor + 2, 0)

ADDS = 'create_table("added_later", sa.Column("id", sa.Integer, primary_key=True))'
_MIGRATION = '''
"""a table that is added later"""
import sqlalchemy as sa
from alembic import op
from tistream.catalog.database.steps import create_table

revision, down_revision, min_release = "{revision}", "{before}", "{min_release}"

def upgrade() -> None:
    {steps}
'''


def later(folder: Path, min_release: Release = FIRST, *steps: str) -> Migrations:
    """The migrations of this release and one more; by default it adds a table."""
    shutil.copytree(MIGRATIONS.folder, folder / "later", ignore=shutil.ignore_patterns("__pycache__"))
    body = "\n    ".join(steps or (ADDS,))
    script = _MIGRATION.format(revision=REVISION, before=NEWEST, min_release=min_release, steps=body)
    (folder / "later" / "versions" / f"v{REVISION}_later.py").write_text(script.lstrip(), "utf-8")
    return Migrations(folder / "later")
