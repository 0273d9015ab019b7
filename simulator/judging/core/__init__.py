"""The judge of a reader, and the times without an owner. Pure."""
