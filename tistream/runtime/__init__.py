"""What every process runs on: services, containment, metrics, the ready queue."""
