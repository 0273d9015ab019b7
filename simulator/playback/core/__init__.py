"""A recorded cluster as a state machine. Pure."""
