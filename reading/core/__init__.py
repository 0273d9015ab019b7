"""Changes of a page: merge, split and cut. Pure."""
