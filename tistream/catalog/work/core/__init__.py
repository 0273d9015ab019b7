"""Rules of work that need no database."""
