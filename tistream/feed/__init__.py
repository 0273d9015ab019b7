"""The feed between dispatchers and sorters: protocol, wire format and Flight transport."""
