"""The API's description: OpenAPI 3.1 with an example of each answer and each problem, and a page to read it."""
