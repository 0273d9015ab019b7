"""Judges what readers of a whole deployment get, and how long parts of it had no owner. Chaos and demo use it."""
