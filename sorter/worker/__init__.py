"""The sorter process: feeds task cores, flushes what they emit, saves state, and reports."""
