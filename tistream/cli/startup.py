"""The start of a process: its name, and that the catalog and the bucket answer within seconds, or the command ends and
names the setting."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from tistream.cli.redact import clean_text
from tistream.errors import ConfigError, ErrorKind, TiStreamError

ANSWER_S = 5.0


class NotAnswering(TiStreamError):
    """The catalog or the bucket did not answer at the start of a process."""

    kind = ErrorKind.RETRY
    code = "TS-1045"
    hint = "A supervisor starts the process again."


def answers(check: Callable[[], None], what: str, setting: str) -> None:
    """Run a check of `what` ("The catalog mysql+pymysql://db:3306/ts") in a thread: some drivers wait for a minute.

    When it fails or has not ended after ANSWER_S, the message has the cause and the setting: NotAnswering where a later
    start may succeed, else ConfigError. Passwords in addresses are left out.
    """
    outcome: list[TiStreamError | None] = []

    def run() -> None:
        try:
            check()
        except TiStreamError as e:
            outcome.append(e)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="startup-check", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    cause = outcome[0] if outcome else NotAnswering(f"no answer within {ANSWER_S:g} s")
    if cause is not None:
        error = NotAnswering if cause.kind is ErrorKind.RETRY else ConfigError
        raise error(clean_text(f"{what} cannot be used: {cause}. Check {setting}."))


def process_name(kind: str) -> str:
    """A name for this process, which no other one has."""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}"
