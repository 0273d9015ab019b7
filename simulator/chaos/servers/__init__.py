"""Real servers for chaos runs and tests: MariaDB, S3, processes and a TCP proxy between them."""
