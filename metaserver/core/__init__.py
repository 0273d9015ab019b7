"""Decides assignments: placement, balance, load and failure detection. Pure."""
