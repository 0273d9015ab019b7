"""A private MariaDB for tests: its own folder, its own port, gone when the block ends.

Needs no service, no rights and no configuration, only the two Debian packages below. An empty data folder is made once
and copied for each further server of the same process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType

from simulator.chaos.servers.ports import START_S, ServerError, free_port, wait_until

PACKAGES = "mariadb-server-core mariadb-client-core"


class MariaDBServer:
    """A server with its own data folder, which can be killed and restarted on the same port."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] = MappingProxyType({}), options: Sequence[str] = ()
    ) -> None:
        """Takes over the empty `folder`; nothing runs yet. `environment`: more than this process has. `options`: more
        for the server's command line."""
        self._root, self.port, self._environment = folder, free_port(), {**os.environ, **environment}
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(_empty_datadir(), folder / "data")

    def url(self, port: int | None = None) -> str:
        """SQLAlchemy's URL of the database `tistream`, through another port if one is given."""
        return f"mysql+pymysql://root@127.0.0.1:{port or self.port}/tistream"

    @property
    def pid(self) -> int:
        """Of the process; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start (again), and wait until it answers."""
        log = self._root / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*_server_command(self._root, self.port), *self._options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment,
                restore_signals=False,  # SIGXFSZ stays ignored: a file that may not grow is an error, as a full disk
            )
        wait_until(lambda: _answers(self.port), self._process, log)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """In good order, if it takes no longer than START_S."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=START_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def mariadb() -> Iterator[str]:
    """A running server with an empty database `tistream`; yields its SQLAlchemy URL."""
    with tempfile.TemporaryDirectory(prefix="tistream-mariadb-") as folder:
        server = MariaDBServer(Path(folder))
        try:
            server.start()
            yield server.url()
        finally:
            server.stop()


def new_database(url: str, name: str) -> str:
    """Make another empty database on the same server; returns its URL."""
    import pymysql
    from sqlalchemy import make_url

    parsed = make_url(url)
    with pymysql.connect(host=parsed.host, port=parsed.port or 0, user="root") as conn, conn.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
    return parsed.set(database=name).render_as_string(hide_password=False)


@cache
def _empty_datadir() -> Path:
    holder = Path(tempfile.mkdtemp(prefix="tistream-mariadb-empty-"))
    _remove_at_exit(holder)
    made = subprocess.run(
        [
            _binary("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={holder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *_user(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if made.returncode != 0:
        raise ServerError(f"mariadb-install-db failed:\n{made.stdout.decode(errors='replace')}")
    (holder / "data" / "tistream").mkdir(mode=0o700, exist_ok=True)  # a folder is a database
    return holder / "data"


def _remove_at_exit(folder: Path) -> None:
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _server_command(root: Path, port: int) -> list[str]:
    return [
        _binary("mariadbd"),
        "--no-defaults",
        f"--datadir={root / 'data'}",
        f"--socket={root / 's'}",
        f"--pid-file={root / 'pid'}",
        f"--tmpdir={root}",  # a server that starts deletes the temporary tables of others in the same folder
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--character-set-server=utf8mb4",
        "--innodb-buffer-pool-size=64M",
        "--innodb-flush-method=nosync",  # a test's data need not survive the machine
        *_user(),
    ]


def _user() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _binary(name: str) -> str:
    path = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") or shutil.which(name)
    if path is None:
        raise ServerError(f"{name} is missing; install it with: apt-get install -y --no-install-recommends {PACKAGES}")
    return path


def _answers(port: int) -> bool:
    import pymysql

    with suppress(pymysql.err.Error), pymysql.connect(host="127.0.0.1", port=port, user="root"):
        return True
    return False
