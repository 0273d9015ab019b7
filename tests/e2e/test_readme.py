"""The README's shell blocks marked `<!-- run -->` do what they say, in order, in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tistream.testing.ports import free_port

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^<!-- run -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULT_PORT = "8711"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a fresh clone as far as the README goes."""
    (tmp_path / "tistream").mkdir()
    (tmp_path / "tistream" / "recording").symlink_to(ROOT / "tistream" / "recording")
    return tmp_path


def test_the_blocks_to_run_work_as_they_stand(folder: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
    assert blocks
    port = str(free_port())
    script = "set -euo pipefail\n" + "\n".join(blocks).replace(DEFAULT_PORT, port)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TISTREAM_")}
    env |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TISTREAM_URL": f"http://127.0.0.1:{port}",  # the blocks rely on the default port, which may be taken here
    }
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=env, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = shell.wait(150)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # what it left running in the background
    said = (folder / "err").read_text("utf-8")
    assert status == 0, said
    assert "Traceback" not in said
    shown = (folder / "out").read_text("utf-8")
    assert '"type":"insert","database":"shop","table":"customers"' in shown
    assert re.search(r"^TiStream at \S+: ok$", shown, re.MULTILINE)
