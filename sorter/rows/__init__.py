"""Arrow batches and compiled kernels of the sorter: runs of rows, payloads and output."""
