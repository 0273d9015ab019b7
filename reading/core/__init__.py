"""Pure functions over changes: merge, split and cut."""
