"""Diagnostics: the result model and the runner of `tistream doctor` and `tistream push --check`."""
