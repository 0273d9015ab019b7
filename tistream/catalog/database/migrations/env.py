"""Run by Alembic; the connection comes from `Catalog.migrate`, so there is no ini file and no address here."""

from __future__ import annotations

from alembic import context

from tistream.catalog.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
