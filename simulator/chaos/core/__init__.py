"""Judges of a chaos run. Pure."""
