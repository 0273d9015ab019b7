"""All mutants by name, collected from the modules of this package that are called `mutants_*`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from simulator.dst.mutants import REGISTER, Mutant

for _path in sorted(Path(__file__).parent.glob("mutants_*.py")):
    import_module(f"simulator.dst.{_path.stem}")

MUTANTS: Mapping[str, Mutant] = REGISTER
