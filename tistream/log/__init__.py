"""Reads committed log segments and table rows from object storage."""
