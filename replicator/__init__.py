"""Runs changefeeds: reads the log and writes it to their destinations."""
