"""The client side of TiKV and PD: messages, timestamps, the region cache and key-value requests."""
