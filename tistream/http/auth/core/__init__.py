"""API keys, roles and rights. Pure."""
