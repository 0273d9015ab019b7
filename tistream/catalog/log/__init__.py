"""Catalog of the log: segments, state checkpoints, compaction, retention and read leases."""
