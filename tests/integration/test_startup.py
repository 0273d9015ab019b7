"""A service that cannot use its catalog or its bucket ends within seconds, and names the cause and the setting."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.chaos.servers.mariadb import mariadb


def start(catalog: str, bucket: str, tmp_path: Path, role: str = "meta", **environment: str) -> tuple[int, str, float]:
    """(exit status, the text on standard error, seconds) of a service."""
    command = [sys.executable, "-m", "tistream.cli.main", role, "--catalog", catalog]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--object-store", bucket],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
    )
    return done.returncode, " ".join(done.stderr.split()), time.monotonic() - began


def test_a_wrong_password_of_the_database_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with mariadb() as url:
        wrong = url.replace("root@", "root:wrong-one@")
        status, said, _ = start(wrong, f"file://{tmp_path}/bucket", tmp_path)
    assert status == 2, said
    assert "Access denied for user 'root'" in said
    assert said.rstrip().endswith("Check catalog.url. [TS-1002]"), said
    assert "wrong-one" not in said


@pytest.mark.parametrize("answering", [False, True], ids=["no server", "a server that never answers"])
def test_a_bucket_that_does_not_answer_names_the_setting(answering: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not answering:
            server.close()
        aws = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        bucket = f"s3://bucket/x?endpoint=http://127.0.0.1:{port}"
        status, said, took_s = start(f"sqlite:///{tmp_path}/catalog.db", bucket, tmp_path, **aws)
    assert status == 4, said
    assert f"The object store {bucket} cannot be used: no answer within 5 s." in said or not answering
    assert "Check object_store.url and AWS_* variables. [TS-1045]" in said, said
    assert took_s < 30  # 5 s, and the interpreter's start on a busy machine; the driver alone tries for 30 s and more
    assert not (tmp_path / "catalog.db").exists() or (tmp_path / "catalog.db").stat().st_size == 0


def test_spark_without_java_says_what_to_install(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/bucket"
    status, said, _ = start(*where, tmp_path, "spark", PATH=str(tmp_path), JAVA_HOME="")
    assert status == 2, said
    assert (
        "Java is not installed. Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless. [TS-1002]"
        in said
    )
