"""Keys and values of raw and txn tenants, which need no schema.

selection    which writes a reader wants, by key range and by regular expressions over bytes
texts        columns of keys and values in a key format
formats      writes as lines of NDJSON or of TiKV-CDC's messages, and as Arrow
core         the state of a key range as of a timestamp
"""
