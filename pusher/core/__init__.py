"""What a pusher decides: batches, table filters, change events. Pure."""
