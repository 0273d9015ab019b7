"""The results of many seeds, kept in a file with one line of JSON for each hundred.

A long series may be interrupted and continued, and its result is small enough to be kept with the code:

    {"seeds":[0,100],"profile":"","trace":"...","simulated_s":2500.1,"cpu_s":60.2,"counts":{...},"violations":[]}

- A line is written at once when all of its seeds were played; a line that a crash has torn is removed.
- Seeds count as played for the requested scenario ("" = each seed's own).
- `trace` is a hash over the seeds' traces: equal code gives equal lines, but for `cpu_s`.

It does not know which code played the seeds: use another file when the code has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from simulator.dst.run import Outcome
from tistream.errors import InvalidInput

CHUNK = 100
_TEXT_MAX = 400  # characters of a violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Some seeds, played."""

    seeds: tuple[int, int]  #: first, and one past the last
    profile: str  #: the scenario that was asked for; "" = each seed's own
    trace: str  #: over all traces, in the order of the seeds
    simulated_s: float
    cpu_s: float
    counts: dict[str, int]  #: sums of Outcome.counts
    violations: list[dict[str, object]] = field(
        default_factory=list
    )  #: seed, profile, violation; of each seed that failed


class Results:
    """The lines of one file."""

    def __init__(self, path: Path) -> None:
        """InvalidInput when the file holds something else."""
        self.path = path
        self.lines: list[Line] = []
        if not path.exists():
            return
        whole, _, torn = path.read_bytes().rpartition(b"\n")
        if torn:
            with path.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                said = json.loads(text)
                self.lines.append(Line(**{**said, "seeds": tuple(said["seeds"])}))
            except (ValueError, TypeError, KeyError) as e:
                raise InvalidInput("not a file of results", file=str(path), line=number, cause=e) from e

    def missing(self, seeds: range, profile: str) -> list[range]:
        """The seeds that have not been played, in pieces that make a line each."""
        done = {seed for line in self.lines if line.profile == profile for seed in range(*line.seeds)}
        out: list[range] = []
        for seed in seeds:
            if seed in done:
                continue
            if out and out[-1].stop == seed and seed % CHUNK:
                out[-1] = range(out[-1].start, seed + 1)
            else:
                out.append(range(seed, seed + 1))
        return out

    def add(self, seeds: range, profile: str, outcomes: Sequence[Outcome]) -> Line:
        """Record the outcome of these seeds."""
        traces = hashlib.blake2b(digest_size=8)
        counts: Counter[str] = Counter()
        for outcome in outcomes:
            traces.update(outcome.trace_hash.encode())
            counts.update(outcome.counts)
        line = Line(
            seeds=(seeds.start, seeds.stop),
            profile=profile,
            trace=traces.hexdigest(),
            simulated_s=round(sum(o.simulated_s for o in outcomes), 1),
            cpu_s=round(sum(o.seconds for o in outcomes), 1),
            counts=dict(counts),
            violations=[
                {"seed": o.seed, "profile": o.profile, "what": [v[:_TEXT_MAX] for v in o.violations]}
                for o in outcomes
                if not o.held
            ],
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps(asdict(line), separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        return line

    def summary(self) -> Iterator[str]:
        """The whole file in readable lines."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            counts.update(line.counts)
        played = sum(stop - start for start, stop in (line.seeds for line in self.lines))
        failed = [violation for line in self.lines for violation in line.violations]
        cpu_s = sum(line.cpu_s for line in self.lines)
        simulated_s = sum(line.simulated_s for line in self.lines)
        yield f"{self.path}: {played} seeds, {len(failed)} failed, {simulated_s:.0f} s simulated in {cpu_s:.0f} CPU s"
        yield ", ".join(f"{name} {count}" for name, count in counts.items())
        for violation in failed:
            yield f"seed {violation['seed']} ({violation['profile']}): {violation['what']}"
