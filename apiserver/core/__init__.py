"""Rate limits and byte ranges. Pure."""
