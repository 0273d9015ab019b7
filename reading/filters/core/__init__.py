"""Parsing and evaluating filters (pure)."""
