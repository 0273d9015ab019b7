"""Rules of the TiKV destination, without I/O."""
