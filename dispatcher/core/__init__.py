"""Routes rows to tasks and counts what consumers acknowledged. Pure."""
