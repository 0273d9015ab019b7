"""Backup and restore of a range of RawKV, and the comparison of what the log says with a cluster.

core         the manifest of a backup; the comparison of two sorted streams of pairs (pure)
files        pairs in Parquet files, each block with its checksum
feed_scan    the pairs of a V2 cluster, by its change feed from 0
from_log     the pairs of a tenant as of a timestamp, by the log alone
job          a backup: pairs -> files -> manifest
"
"
"""
