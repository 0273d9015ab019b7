"""What a command writes on a terminal: a pseudo-terminal, read from its other end."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence


def read_terminal(leader: int) -> bytes:
    """What is there next; empty when the other end is closed."""
    try:
        return os.read(leader, 1 << 16)
    except OSError:
        return b""


def on_terminal(command: Sequence[str], *, columns: int) -> str:
    """The standard output of a command on a terminal of this width; the command must succeed."""
    leader, follower = pty.openpty()
    env = os.environ | {"COLUMNS": str(columns)}
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=env) as process:
        os.close(follower)
        text = b"".join(iter(lambda: read_terminal(leader), b""))
        os.close(leader)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 0, said
    return text.decode().replace("\r\n", "\n")
