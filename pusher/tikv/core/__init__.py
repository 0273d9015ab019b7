"""The state machine of one store's change feed. Pure."""
