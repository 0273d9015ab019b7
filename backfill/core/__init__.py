"""Plans of a backfill and their wire form. Pure."""
