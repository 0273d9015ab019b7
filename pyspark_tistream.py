"""Makes every Spark session know the format `tistream`: Spark asks modules `pyspark_*` for a `DefaultSource`."""

from tistream.spark import TiStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
