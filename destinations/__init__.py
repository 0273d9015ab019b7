"""Where changefeeds write: destinations by URI, behind one protocol."""
