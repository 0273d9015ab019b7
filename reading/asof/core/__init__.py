"""Columns of a table as of a timestamp. Pure."""
