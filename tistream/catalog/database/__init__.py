"""The catalog database: connections, tables, migrations and notifications."""
