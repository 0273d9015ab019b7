"""`tistream compile` plays its two parts to their ends, and says so when one of them fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys

COMPILE = [sys.executable, "-m", "tistream.cli.main", "compile"]


def test_everything_that_handles_rows_is_compiled_in_a_folder_of_its_own() -> None:
    elsewhere = {"TISTREAM_CATALOG_URL": "nowhere://", "TISTREAM_OBJECT_STORE_URL": "nowhere://"}
    done = subprocess.run(
        COMPILE, capture_output=True, text=True, timeout=400, check=False, env={**os.environ, **elsewhere}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Compiled in ")
    assert done.stderr.count("not ready") <= int(re.findall(r"\d+", done.stdout)[0]) / 4, "a line every five seconds"


def test_a_part_that_fails_is_named() -> None:
    environment = {**os.environ, "TISTREAM_DISPATCHER_PORT": "no number"}
    done = subprocess.run(COMPILE, capture_output=True, text=True, timeout=400, check=False, env=environment)
    assert done.returncode != 0
    assert "Compiling ahead failed in way_of_a_row" in done.stderr
