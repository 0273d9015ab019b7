"""Backup and restore of a range of RawKV, and the comparison of what the log says with a cluster.

core         the manifest of a backup; comparisons of sorted pairs and of rows in buckets (pure)
files        pairs in Parquet files, each block with its checksum
scans        the pairs of a cluster: of V2 by its change feed from 0, of V1 by RawScan
from_log     the pairs of a tenant as of a timestamp, by the log alone
job          a backup: pairs -> files -> manifest
cluster      a backup of a cluster: API version, parts, backup_ts, history held
restore      files -> a cluster, read back and compared
tidb         tables of a tenant as of a timestamp against those of the cluster
"
"""
