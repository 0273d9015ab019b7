"""The pure parts of sealing: bytes and times in, bytes and decisions out."""
