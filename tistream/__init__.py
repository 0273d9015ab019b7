"""TiStream: the ordered change log of TiDB and TiKV clusters in object storage."""

__version__ = "0.2.0.dev0"
