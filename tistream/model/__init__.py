"""Values that every service shares: the change row, positions, task state."""
