"""Schema histories, begun from a pushed snapshot, followed in the log and stored in the catalog."""
