"""Decisions about consumers, without I/O and without a clock."""
