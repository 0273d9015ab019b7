"""What is served of a tenant: how far, from which schema, and where a cursor lies in it."""
