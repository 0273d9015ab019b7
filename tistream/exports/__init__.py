"""Exports of the catalog into the bucket, and the restore from one."""
