"""Replays a backlog of batch files in bulk, on Spark or in threads, and hands over to the live sorters."""
