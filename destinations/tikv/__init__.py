"""RawKV of another TiKV cluster as a changefeed's destination."""
