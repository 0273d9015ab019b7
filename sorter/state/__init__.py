"""State checkpoints of the sorter: save, restore, split and join."""
