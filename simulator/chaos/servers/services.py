"""The services of a deployment as processes of this machine, by names like `sorter-2`. Each has its own port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, wait_until_ready

_COMMANDS = {"meta": "meta", "dispatcher": "dispatch", "sorter": "sort"}  #: other roles are named as their commands


class Services:
    def __init__(self, folder: Path, environment: Callable[[str], Mapping[str, str]]) -> None:
        """`environment` gives the variables of each process; logs go to `folder`."""
        self.folder, self._environment = folder, environment
        self.processes: dict[str, TiStreamProcess] = {}
        self._ports: dict[str, int] = {}

    def url_of(self, name: str) -> str:
        """Where its probes, metrics and routes are. The port is chosen when it is first asked for."""
        return f"http://127.0.0.1:{self._port(name)}"

    def add(self, name: str, *args: str) -> None:
        """Know the command line of a process that is no service; `start` starts it."""
        log = self.folder / f"{name}.log"
        self.processes[name] = TiStreamProcess(*args, log=log, env=self._environment(name))

    def start(self, *names: str) -> None:
        """Start these, or start them again."""
        for name in names:
            if name not in self.processes:
                self.add(name, *self._args(name))
            self.processes[name].start()

    def wait_until_ready(self, *names: str) -> None:
        """Until these services answer; all without names."""
        for name in names or self._ports:
            wait_until_ready(self.processes[name], self.url_of(name))

    def kill(self) -> None:
        """All of them."""
        for process in self.processes.values():
            process.kill()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {name}\n{process.output()[-1500:]}" for name, process in self.processes.items())

    def _args(self, name: str) -> tuple[str, ...]:
        role, port = name.partition("-")[0], str(self._port(name))
        if role == "api":
            return ("serve", "--port", port)
        return (_COMMANDS.get(role, role), "--name", name, "--metrics-port", port)

    def _port(self, name: str) -> int:
        if name not in self._ports:
            self._ports[name] = free_port()
        return self._ports[name]
