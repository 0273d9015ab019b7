"""The asynchronous client: what `tistream.client` has, with `await`, for one event loop."""
