"""Rows of the catalog as values: tenants, tasks, workers, segments, jobs. No SQL and no I/O, so cores use them."""
