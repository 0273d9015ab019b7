"""Reads the files of TiDB's log backup. Pure."""
