"""Requests, answers and streams of the client. Pure."""
