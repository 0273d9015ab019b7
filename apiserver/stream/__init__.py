"""Streams: changes as they are served, over one long-lived connection."""
