"""Changes in Spark: `spark.dataSource.register(TiStreamDataSource)`, then `format("tistream")`; docs/spark.md."""

from tistream.spark.source import TiStreamDataSource

__all__ = ["TiStreamDataSource"]
