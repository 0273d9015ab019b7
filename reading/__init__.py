"""The reading side of the log: decodes rows, merges segments, renders message formats, and reads tables as of a
timestamp."""
