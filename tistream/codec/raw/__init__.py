"""RawKV data of TiKV's API V2: keys with mode and keyspace, values with expiry and deletion. And those of API V1.

Source: TiKV RFC 69 (api-v2), and recordings of a living TiKV.
"""
