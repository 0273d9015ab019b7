"""Messages, regions and keyspaces of TiKV and PD, as bytes and values. Pure."""
