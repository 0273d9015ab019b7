"""Schema histories, followed in the log and stored in the catalog."""
