"""Pushers that play recordings and the model cluster instead of following a live one."""
