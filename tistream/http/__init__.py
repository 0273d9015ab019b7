"""HTTP for every server: problems, probes, access log and authentication."""
