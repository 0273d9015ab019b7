"""The demo's output around the rows: the box with addresses, the updated line, the summary card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.panel import Panel
from rich.table import Table

from simulator.demo.compaction import Outcome
from simulator.demo.drill import Drill, Phase
from simulator.demo.load import Verdict

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 24


def addresses(url: str, end: str) -> Panel:
    """Where everything is, and how it ends."""
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("console", f"{url}/"),
        ("API docs", f"{url}/docs"),
        ("metrics", f"{url}/metrics"),
        ("login", "none: this machine only"),
        ("end", end),
    ):
        table.add_row(f"[bold]{name}[/]", value)
    return Panel(table, expand=False, box=box.ROUNDED, border_style="cyan")


def spark(values: Sequence[float]) -> str:
    """The newest values as bars, the tallest one full."""
    shown = values[-_SHOWN:]
    top = max(max(shown, default=0.0), 5.0)
    return "".join(_BARS[min(len(_BARS) - 1, int(v / top * len(_BARS)))] for v in shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals of the recording."""

    kinds: Mapping[str, int]  #: kind of event -> how many
    tables: int
    violations: int  #: of the order


def facts(
    totals: Totals, drill: Drill | None, verdict: Verdict | None, compaction: Outcome | None = None
) -> list[tuple[str, str]]:
    """The lines of the summary card."""
    kinds = {kind: n for kind, n in totals.kinds.items() if kind != "ddl"}
    rows = ", ".join(f"{n:,} {kind}s" for kind, n in sorted(kinds.items(), key=lambda kind: -kind[1])) or "nothing yet"
    lines = [("rows", rows + (f"; {verdict.checked:,} changes generated and read" if verdict is not None else ""))]
    lines += [("tables", f"{totals.tables:,}"), ("DDL", f"{totals.kinds.get('ddl', 0):,}")]
    lines += _of_drill(drill) if drill is not None else []
    if verdict is not None:
        lines.append(("checker", str(verdict)))
    if drill is not None:
        lines.append(("compaction", "not played in this time" if compaction is None else str(compaction)))
    return [*lines, ("recording", f"out of order {totals.violations}")]


def card(lines: Sequence[tuple[str, str]], *, boxed: bool) -> str | Panel:
    """The summary: in a box on a terminal, else as lines that a program can read."""
    if not boxed:
        return "\n".join(["", "Summary", *(f"  {name:10} {value}" for name, value in lines)])
    table = Table.grid(padding=(0, 2))
    for name, value in lines:
        table.add_row(f"[bold]{name}[/]", value)
    return Panel(table, title="Summary", expand=False, box=box.ROUNDED, border_style="green")


def _of_drill(drill: Drill) -> list[tuple[str, str]]:
    p50, p99 = drill.calm(0.5), drill.calm(0.99)
    lines = [] if p50 is None or p99 is None else [("lag", f"p50 {p50:.1f} s, p99 {p99:.1f} s of the generated load")]
    match drill.phase:
        case Phase.CALM:
            lines.append(("takeover", "no sorter was killed in this time"))
        case Phase.KILLED:
            lines.append(("takeover", f"{drill.victim} was killed; not taken over yet when this ended"))
        case _:
            words = f"{drill.takeover_s:.1f} s after {drill.victim} was killed with {drill.moved} tasks"
            lines.append(("takeover", f"{words}; lag at most {drill.peak_s:.1f} s"))
    return lines
