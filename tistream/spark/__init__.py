"""Changes in Spark: `format("tistream")`, which `pyspark_tistream` registers; docs/spark.md."""

from tistream.spark.source import TiStreamDataSource

__all__ = ["TiStreamDataSource"]
