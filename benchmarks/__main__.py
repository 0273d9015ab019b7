"""`python -m benchmarks [NAME...] [--json]`, from the root of the checkout.

Without names every benchmark runs. With --json each ratio is one line with name, ratio, better, target, min, max, runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from benchmarks.harness import Result


def main() -> int:
    """Run the named benchmarks; 2 when there is no such benchmark."""
    modules = (path for path in sorted(Path(__file__).parent.glob("*.py")) if "\ndef run()" in path.read_text("utf-8"))
    names = [path.stem.replace("_", "-") for path in modules]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Ratios of two things timed side by side."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(names)):
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    results = (result for name in arguments.names or names for result in _run(name))
    if arguments.json:
        for result in results:
            print(json.dumps({key: _rounded(value) for key, value in asdict(result).items()}), flush=True)
    else:
        _show(results)
    return 0


def _run(name: str) -> Iterator[Result]:
    results: Iterator[Result] = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run()
    yield from results


def _show(results: Iterator[Result]) -> None:
    table = Table(Column("benchmark", overflow="fold"), "ratio", "target", "min - max", "runs", "met")
    for r in results:
        sign = ">=" if r.better == "higher" else "<="
        spread = f"{r.min:.3g} - {r.max:.3g}"
        table.add_row(r.name, f"{r.ratio:.3g}", f"{sign} {r.target:g}", spread, str(r.runs), "yes" if r.met else "NO")
    Console().print(table)


def _rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
