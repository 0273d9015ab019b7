"""Formatting, watermark gaps and the cost model. Pure."""
