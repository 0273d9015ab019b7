"""Who does what: tasks, workers, the leader, reshapes, stops."""
