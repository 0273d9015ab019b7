"""Which operations of a minute are one entry."""
