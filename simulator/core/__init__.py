"""The model of a TiKV cluster. Pure."""
