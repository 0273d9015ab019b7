"""Rows of the log as readers see them: filtered by scope and decoded."""
