"""Streams: changes as they come, over one connection that stays open."""
