"""Explores the specifications further than the tests: `python -m tests.specs --states 10000000`.

The states are shared among the sizes of the tests and the large ones; what a size that ends does not need, the later
ones have. A line for each; exit status 1 when a promise breaks.
"""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

from tests.specs import epochs, lanes, watermarks
from tests.specs.explore import Spec, explore

SPECS: dict[ModuleType, type[Any]] = {watermarks: watermarks.Watermarks, epochs: epochs.Epochs, lanes: lanes.Lanes}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.specs", description="Explore the specifications.")
    parser.add_argument("--states", type=int, default=10_000_000, help="in total, about")
    states_max, states, broken = parser.parse_args().states, 0, 0
    runs = [(of, size, of.SIZES[size]) for of in SPECS for size in of.SIZES] + [(of, "large", of.LARGE) for of in SPECS]
    for n, (of, size, bounds) in enumerate(runs):
        spec: Spec = SPECS[of](**bounds)
        explored = explore(spec, max(1, (states_max - states) // (len(runs) - n)))
        states += explored.states
        broken += bool(explored.violations)
        print(f"{SPECS[of].__name__} {size}: {explored}", flush=True)
    print(f"{states:,} states, {broken} violations")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
