"""Does step by step what a Dockerfile says, in bare folders, without a container daemon.

    image = build(ROOT / "infra/Dockerfile", ROOT, folder)
    image.root, image.env, image.entrypoint ...

A base image is stood in for by this machine: its /usr and a copy of its /etc, read only, and the Python that runs the
tests as `python`. Everything else of a root folder is empty until a step writes it. Four things are done faster, to
the same end: uv installs what `pip install` asks for, dependencies as links into its cache; an extra's packages are
links to those beside the Python that runs the tests (pip would pack the 400 MB of Spark first); kernels that this user
compiled before, which are named by what they were made from, are there when the step that compiles them runs; and what
`apt-get install` asks for must be installed on this machine.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import Requirement

from tests.kit.pods.sandbox import Mount, Sandbox

BASE = re.compile(r"python:3\.\d+-slim-\w+")
STAND_IN = "/opt/stand-in"  #: of a base image's /usr/local
_LINKS = ("bin", "sbin", "lib", "lib64")
_APT = re.compile(r"apt-get update && apt-get install -y --no-install-recommends (\S+) && rm -rf \S+")
_INSTALL = r"(\S+)/bin/pip install(?: --no-cache-dir| --disable-pip-version-check)*"
_EXTRA = re.compile(_INSTALL + r" 'tistream\[(\w+)\]'")  #: more for the distribution that is installed already
_PIP = re.compile(_INSTALL + r"((?: (?:'[^']+'|[^\s'&\\]+))+)")
_STEP_S = 900


@dataclass(slots=True, kw_only=True)
class Image:
    """A stage, or the whole."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: int = 0
    group: int = 0
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  #: done, in order

    def sandbox(self, command: Sequence[str], **more: object) -> Sandbox:
        """A program in this image."""
        given: dict[str, object] = {
            "root": str(self.root),
            "command": list(command),
            "env": self.env,
            "cwd": self.cwd,
            "user": self.user,
            "group": self.group,
            "mounts": list(machine_mounts()),
        }
        return Sandbox(**{**given, **more})  # type: ignore[arg-type]


def machine_mounts() -> Iterator[Mount]:
    """What stands in for a base image, and what every container has."""
    yield Mount(source="/usr", target="/usr")
    python = sys.base_prefix
    if not python.startswith("/usr"):
        yield Mount(source=python, target=python)
    if (cache := _uv_cache()).is_dir():
        yield Mount(source=str(cache), target=str(cache), writable=False)
    for name in ("/proc", "/dev"):
        yield Mount(source=name, target=name, writable=True)


def build(
    dockerfile: Path,
    context: Path,
    folder: Path,
    *,
    target: str = "",
    images: Mapping[str, Image] = MappingProxyType({}),
) -> Image:
    """The last stage, or the one named `target`. `images`: others by name, to begin from."""
    stages: dict[str, Image] = dict(images)
    arguments: dict[str, str] = {}
    current: Image | None = None
    for word, rest in instructions(dockerfile.read_text("utf-8")):
        if word == "ARG":
            name, _, arguments[name] = rest.partition("=")
            continue
        if word == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], rest).partition(" AS ")
            name = name or str(len(stages))
            current = stages[name] = _from(base, stages, folder / f"stage-{name}")
        elif current is None:
            raise ValueError(f"{word} before FROM")
        else:
            _Step(current, stages, context)(word, rest)
        assert current is not None
        current.steps.append(f"{word} {rest}")
        if target and word != "FROM" and stages.get(target) not in (None, current):
            break
    return stages[target] if target else list(stages.values())[-1]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """(FROM, rest of the line) ..., lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


@dataclass(frozen=True, slots=True)
class _Step:
    image: Image
    stages: dict[str, Image]
    context: Path

    def __call__(self, word: str, rest: str) -> None:
        image = self.image
        match word:
            case "RUN":
                self._run(rest)
            case "COPY":
                self._copy(shlex.split(rest))
            case "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    image.env[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: image.env[match[1]], value)
            case "WORKDIR":
                image.cwd = rest
                _inside(image.root, rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                user, _, group = rest.partition(":")
                image.user, image.group = (0, 0) if user == "root" else (int(user), int(group or user))
            case "ENTRYPOINT":
                image.entrypoint, image.command = json.loads(rest), []
            case "CMD":
                image.command = json.loads(rest)
            case "HEALTHCHECK":
                image.health = json.loads(rest.partition("CMD ")[2])
            case "LABEL" | "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                raise ValueError(f"a step that is not known here: {word} {rest}")

    def _run(self, script: str) -> None:
        for package in _APT.findall(script):
            subprocess.run(["dpkg", "-s", package], check=True, stdout=subprocess.DEVNULL)
        for folder, extra in _EXTRA.findall(script):
            self._link(extra, _inside(self.image.root, folder))
        script = _EXTRA.sub("true", _APT.sub("true", script))
        cache = _uv_cache()
        mounts = [m for m in machine_mounts() if m.source != str(cache)]
        if uv := _uv():
            cache.mkdir(parents=True, exist_ok=True)
            mounts += [Mount(source=str(cache), target=str(cache), writable=True)]
            mounts += [Mount(source=uv, target=f"{STAND_IN}/uv")]
            install = rf"{STAND_IN}/uv pip install --quiet --cache-dir {cache} --python \1/bin/python"
            own = "--link-mode copy --no-deps --reinstall-package tistream --reinstall-package tistream-server"
            # our own are copied: the console serves no links
            script = _PIP.sub(rf"{install} --link-mode hardlink\2 && {install} {own}\2", script)
        _seed_kernels(self.image)
        passed = {k: v for k, v in os.environ.items() if re.match(r"PIP_|UV_|SSL_|REQUESTS_|OPENBLAS|.*_proxy$", k)}
        env = {"UV_SYSTEM_CERTS": "1", **passed, **self.image.env, "HOME": "/root"}
        spec = self.image.sandbox(["/bin/sh", "-ec", script], env=env, mounts=mounts, writable_root=True)
        run_in(spec, self.image.root.with_suffix(".json"), timeout_s=_STEP_S)

    def _link(self, extra: str, environment: Path) -> None:
        """Put the packages of the project's extra, and all that they need, into an environment."""
        project = tomllib.loads((self.context / "pyproject.toml").read_text("utf-8"))["project"]
        requirements = list(map(Requirement, project["optional-dependencies"][extra]))
        (site,) = environment.glob("lib/python*/site-packages")
        seen: set[str] = set()
        while requirements:
            requirement = requirements.pop()
            is_of_extra = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
            if requirement.name in seen or is_of_extra:
                continue
            seen.add(requirement.name)
            installed = distribution(requirement.name)
            if installed.version not in requirement.specifier:
                raise ValueError(f"{requirement} is asked for, and {installed.version} is here")
            requirements += map(Requirement, installed.requires or ())
            for file in installed.files or ():
                target = site / file
                if ".." not in file.parts and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _link_or_copy(str(file.locate()), str(target))

    def _copy(self, words: list[str]) -> None:
        source_root, ignored = self.context, _ignored(self.context)
        if words[0].startswith("--from="):
            source_root, ignored = self.stages[words.pop(0).removeprefix("--from=")].root, []
        *sources, target = words
        to = _inside(self.image.root, target if target.startswith("/") else f"{self.image.cwd}/{target}")
        for source in sources:
            path = source_root / source.strip("/")
            if path.is_dir():
                _copy_tree(path, to, ignored)
            else:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / path.name if target.endswith("/") else to)


def run_in(spec: Sandbox, path: Path, *, timeout_s: float) -> str:
    """Run a program to its end; what it printed."""
    command = [sys.executable, str(Path(__file__).with_name("sandbox.py")), str(spec.write(path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise AssertionError(f"{list(spec.command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _from(base: str, stages: dict[str, Image], root: Path) -> Image:
    if base in stages:
        before = stages[base]
        _copy_tree(before.root, root, [])
        return Image(root=root, env=dict(before.env), cwd=before.cwd, entrypoint=before.entrypoint, user=before.user)
    if not BASE.fullmatch(base):
        raise ValueError(f"no stand-in for the image {base}")
    for name in ("tmp", "var/tmp", "root", "run", "home", STAND_IN.strip("/")):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in _LINKS:
        if Path("/", name).exists():
            (root / name).symlink_to(f"usr/{name}")
    shutil.copytree("/etc", root / "etc", symlinks=True, ignore_dangling_symlinks=True)
    for name in ("python", "python3"):
        (root / STAND_IN.strip("/") / name).symlink_to(Path(sys.base_prefix, "bin", "python3"))
    return Image(root=root, env={"PATH": f"{STAND_IN}:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _ignored(context: Path) -> list[str]:
    path = context / ".dockerignore"
    return [line for line in path.read_text("utf-8").split() if not line.startswith("#")] if path.exists() else []


def _copy_tree(source: Path, target: Path, ignored: Sequence[str]) -> None:
    top = [pattern for pattern in ignored if not pattern.startswith("**/")]
    anywhere = [pattern.removeprefix("**/") for pattern in ignored if pattern.startswith("**/")]

    def left_out(folder: str, names: list[str]) -> list[str]:
        patterns = anywhere + (top if Path(folder) == source else [])
        return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=left_out, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # on another disk
        shutil.copy2(source, target, follow_symlinks=False)


def _seed_kernels(image: Image) -> None:
    from tistream.codec import kernel_cache

    cache = kernel_cache.folder()
    if (name := image.env.get("NUMBA_CACHE_DIR")) and cache.is_dir():
        shutil.copytree(cache, to := _inside(image.root, name), dirs_exist_ok=True)
        for path in to.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def _uv() -> str | None:
    beside = (Path(sys.executable).with_name("uv"), Path(sys.base_prefix, "bin", "uv"))
    return next((str(path) for path in beside if path.exists()), None)


def _uv_cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("UV_CACHE_DIR") or home / "uv")
