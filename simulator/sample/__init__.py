"""A shop that keeps writing: the tenant of `tistream up --sample`, for newcomers, pages and pictures."""
