"""Pages of rows from the committed log, in bounded memory and under a lease."""
