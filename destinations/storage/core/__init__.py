"""What a stretch becomes in the layout of a storage sink, without I/O."""
