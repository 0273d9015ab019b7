"""Dead letters as files, without I/O and without a clock."""
