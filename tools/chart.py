"""Renders the chart with helm into infra/helm/rendered, where the tests read it.

    python tools/chart.py           lint, render, validate against Kubernetes' schemas, write
    python tools/chart.py --check   the same, but compare instead of writing

helm is the one in PATH, else built once by Go into the user's cache (three minutes of CPU). A rendering begins with a
hash of the chart and its values: tests/unit/infra notices a chart that was changed and not rendered, where helm is
missing.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HELM = ROOT / "infra" / "helm"
CHART = HELM / "tistream"
RENDERED = HELM / "rendered"
HELM_VERSION = "v3.19.5"
VALIDATOR = "kubernetes-validate==1.37.0"
#: oldest and newest Kubernetes that the manifests must suit
KUBERNETES = ("1.27", "1.35")
MINIMAL = {"objectStore.url": "s3://changes/production?region=eu-central-1"}


def cases() -> dict[str, Path | None]:
    """Name of a rendering -> its values; None: only what must be given."""
    return {"minimal": None} | {path.stem: path for path in sorted((HELM / "examples").glob("*.yaml"))}


def stamp(values: Path | None) -> str:
    """The first line of a rendering: what it was made from."""
    files = sorted(path for path in CHART.rglob("*") if path.is_file()) + ([values] if values else [])
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(HELM).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"# python tools/chart.py: from {digest.hexdigest()}\n"


def cached_helm() -> Path:
    """Where `helm` builds it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tistream" / f"helm-{HELM_VERSION}" / "helm"


def found_helm() -> str | None:
    """A helm that is there already."""
    cached = cached_helm()
    return shutil.which("helm") or (str(cached) if cached.exists() else None)


def helm() -> str:
    """A helm, built if there is none."""
    if path := found_helm():
        return path
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        sys.exit(f"helm {HELM_VERSION} is missing, and so is Go, which would build it")
    print(f"Building helm {HELM_VERSION} ...", file=sys.stderr)
    folder = cached_helm().parent
    module = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
    subprocess.run([go, "install", module], check=True, env={**os.environ, "GOBIN": str(folder)})
    return str(cached_helm())


def render(program: str, values: Path | None, kubernetes: str = KUBERNETES[0]) -> str:
    """The manifests, as the release `tistream` in the namespace `tistream`."""
    given = ["--values", str(values)] if values else [f"--set={key}={value}" for key, value in MINIMAL.items()]
    where = ["--namespace", "tistream", "--kube-version", f"{kubernetes}.0"]
    command = [program, "template", "tistream", str(CHART), *where, *given]
    return stamp(values) + subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def lint(program: str) -> None:
    """helm's own."""
    for values in cases().values():
        given = ["--values", str(values)] if values else [f"--set={key}={value}" for key, value in MINIMAL.items()]
        subprocess.run([program, "lint", "--strict", "--quiet", str(CHART), *given], check=True)


def validate(paths: list[Path]) -> None:
    """Check manifests against the Kubernetes schemas, which do not cover the kinds of the Prometheus operator."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    for version in KUBERNETES:
        command = [uv, "tool", "run", "--quiet", "--from", VALIDATOR, "kubernetes-validate"]
        subprocess.run([*command, "--strict", "--quiet", "--no-warn", "-k", version, *map(str, paths)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare; write nothing")
    check = parser.parse_args().check
    program, differing = helm(), 0
    lint(program)
    for name, values in cases().items():
        path, text = RENDERED / f"{name}.yaml", render(program, values)
        before = path.read_text("utf-8") if path.exists() else ""
        if not check:
            path.write_text(text, "utf-8")
        elif text != before:
            differing += 1
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), text.splitlines(True), str(path), "now")
            )
    if not check:
        validate([RENDERED / f"{name}.yaml" for name in cases()])
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
