"""Diagnostics: the result model, the runner and the rendering of `tistream doctor` and `tistream push --check`."""
