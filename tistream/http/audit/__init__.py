"""The audit log of an HTTP server: what is recorded of each request that may change something."""
