"""Schema histories read from the log and the catalog."""
