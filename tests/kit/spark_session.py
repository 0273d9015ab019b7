"""A Spark for tests: small, and as fast to start as it gets without an archive of classes."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from compactor.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@cache
def _local_dir() -> str:
    """A folder of this process, for all of its sessions: their Java remembers the first one."""
    folder = tempfile.mkdtemp(prefix="tistream-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def local_session(more: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Two threads of this process. Spark's own warnings, of its start and its end, are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = new_session("local[2]", {**SPARK_OPTIONS, "spark.local.dir": _local_dir(), **more})
        yield session
        session.stop()
