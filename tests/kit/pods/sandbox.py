"""Starts one program as a container runtime does: its own mounts, network and root folder, a user without rights.

    python sandbox.py SPEC.json         run by root; becomes the program

SPEC.json has the fields of `Sandbox`. Only the standard library, as it is started for every container.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_NETWORK = 0x00020000, 0x04000000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DROP_CAPABILITY, _NO_NEW_PRIVILEGES = 24, 38
_CAPABILITIES = 41


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of this machine, shown inside."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What a program gets."""

    root: str  #: the folder that becomes /
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    mounts: Sequence[Mount] = ()
    writable_root: bool = False
    network: str = ""  #: a network namespace of `ip netns`; empty = this machine's
    host_name: str = ""
    user: int = 0
    group: int = 0
    rights: bool = True  #: False: no capabilities, and no way to get some

    def write(self, path: Path) -> Path:
        """As the file that this program takes."""
        path.write_text(json.dumps(asdict(self)), "utf-8")
        return path


@dataclass(slots=True)
class _Libc:
    libc: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None, use_errno=True))

    def call(self, name: str, *args: object) -> None:
        if getattr(self.libc, name)(*args) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}{args}: {os.strerror(number)}")

    def bind(self, source: str, target: str, *, writable: bool) -> None:
        self.call("mount", source.encode(), target.encode(), None, _BIND | _RECURSIVE, None)
        if not writable:
            flags = _REMOUNT | _BIND | _READ_ONLY
            self.call("mount", b"none", target.encode(), None, flags, None)


def enter(spec: Sandbox) -> None:
    """Become the program."""
    libc = _Libc()
    if spec.network:
        with open(f"/run/netns/{spec.network}") as namespace:
            libc.call("setns", namespace.fileno(), _NEW_NETWORK)
    libc.call("unshare", _NEW_MOUNTS | _NEW_HOST_NAME)
    if spec.host_name:
        socket.sethostname(spec.host_name)
    libc.call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    libc.call("mount", spec.root.encode(), spec.root.encode(), None, _BIND, None)
    for mount in spec.mounts:
        target = spec.root.rstrip("/") + mount.target
        _make(Path(mount.source), Path(target))
        libc.bind(mount.source, target, writable=mount.writable)
    if not spec.writable_root:
        libc.call("mount", b"none", spec.root.encode(), None, _REMOUNT | _BIND | _READ_ONLY, None)
    os.chroot(spec.root)
    os.chdir(spec.cwd)
    if not spec.rights:
        libc.call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        for capability in range(_CAPABILITIES):
            libc.call("prctl", _DROP_CAPABILITY, capability, 0, 0, 0)
    os.umask(0o022)
    os.setgroups([spec.group] if spec.group else [])
    os.setresgid(spec.group, spec.group, spec.group)
    os.setresuid(spec.user, spec.user, spec.user)
    os.execvpe(spec.command[0], list(spec.command), dict(spec.env))


def _make(source: Path, target: Path) -> None:
    """The place that something is mounted to, as a runtime makes it."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    enter(Sandbox(**{**spec, "mounts": [Mount(**mount) for mount in spec["mounts"]]}))


if __name__ == "__main__":
    main()
