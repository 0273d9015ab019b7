"""PD and change feed messages as a server writes them. Pure."""
