"""A Spark driver of its own: a table's changes into a folder of Parquet files, until it has what is served.

python -m tests.kit.spark_stream URL CHECKPOINT OUT DATABASE TABLE ROWS_PER_TRIGGER
"""

from __future__ import annotations

import sys
from pathlib import Path

from compactor.session import new_session
from tests.kit.spark_session import SPARK_OPTIONS


def main(url: str, checkpoint: str, out: str, database: str, table: str, rows: str) -> None:
    """Run the query from its checkpoint to the served watermark."""
    session = new_session("local[2]", {**SPARK_OPTIONS, "spark.local.dir": str(Path(checkpoint).parent / "spark")})
    options: dict[str, str | int] = {"url": url, "cluster": 1, "tenant": 1, "database": database, "table": table}
    frame = session.readStream.format("tistream").options(**options, maxRowsPerTrigger=rows).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(out).awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
