"""Key management services: AWS KMS, and a file for the embedded default."""
