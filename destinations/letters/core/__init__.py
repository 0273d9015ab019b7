"""The decisions about a lane, without I/O and without a clock."""
