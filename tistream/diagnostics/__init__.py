"""Findings of `tistream doctor` and `tistream push --check`."""
