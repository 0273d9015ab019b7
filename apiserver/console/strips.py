"""The key space as a strip of cells, coloured by owner or by lag. Pure.

Cells are equally wide, in key order. Above CELLS_MAX, ranges share cells, and a cell shows its worst range. Each cell
is a link, so that it is reachable by keyboard, with a description.
"""

from __future__ import annotations

from typing import Any

from tistream.admin.core.lag_sentence import LATE_S
from tistream.admin.core.units import seconds_text

CELLS_MAX = 160
OWNER_COLOURS = 6
_WIDTH, _GAP = 1000.0, 2.0
_WORST = {"stopped": 4, "silent": 3, "waiting": 2, "paused": 1, "running": 0}


def owner_strip(ranges: list[dict[str, Any]], colours: dict[str, int]) -> list[dict[str, Any]]:
    """Cells coloured by owner, or by state unless running."""
    return _cells(ranges, lambda group: _owner_class(group, colours))


def states_in(ranges: list[dict[str, Any]]) -> list[str]:
    """States other than running, the worst first."""
    return sorted({task["state"] for task in ranges} - {"running"}, key=lambda state: -_WORST[state])


def lag_strip(ranges: list[dict[str, Any]], watermark_gaps: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Cells coloured by lag; watermark gaps have a colour of their own."""

    def colour(group: list[dict[str, Any]]) -> str:
        gaps = [gap for task in group for gap in watermark_gaps.get(task["task_id"], ())]
        if gaps:
            return "gap" if any(gap["cause"] == "watermark_gap" for gap in gaps) else "late3"
        return lag_class(max((task["lag_s"] or 0 for task in group), default=0))

    return _cells(ranges, colour)


def lag_class(lag_s: float) -> str:
    """Below LATE_S, below 30 s, below 5 min, above."""
    return f"late{lateness(lag_s)}"


def lateness(lag_s: float) -> int:
    """0 below LATE_S, as in the sentence of the lag; 1 below 30 s, 2 below 5 min, 3 above."""
    return next((n for n, bound in enumerate((LATE_S, 30, 300)) if lag_s < bound), 3)


def owner_colours(names: list[str]) -> dict[str, int]:
    """A colour number per worker, stable for the same names."""
    return {name: n % OWNER_COLOURS for n, name in enumerate(sorted(names))}


def _cells(ranges: list[dict[str, Any]], colour: Any) -> list[dict[str, Any]]:
    size = max(1, -(-len(ranges) // CELLS_MAX))
    groups = [ranges[at : at + size] for at in range(0, len(ranges), size)]
    width = (_WIDTH + _GAP) / max(1, len(groups))
    return [
        {
            "x": round(n * width, 1),
            "width": round(max(width - _GAP, width / 2), 1),
            "colour": colour(group),
            "href": f"/tasks/{group[0]['task_id']}",
            "words": _description(group),
        }
        for n, group in enumerate(groups)
    ]


def _owner_class(tasks: list[dict[str, Any]], colours: dict[str, int]) -> str:
    worst = max(tasks, key=lambda task: _WORST[task["state"]])
    if worst["state"] != "running":
        return str(worst["state"])
    owners = {task["owner"] for task in tasks}
    return f"own{colours[owners.pop()]}" if len(owners) == 1 else "own-several"


def _description(tasks: list[dict[str, Any]]) -> str:
    if len(tasks) > 1:
        owners = sorted({task["owner"] or "none" for task in tasks})
        return f"{len(tasks)} ranges from {tasks[0]['label']}: {', '.join(owners[:4])}"
    task = tasks[0]
    return f"{task['label']}: {task['state']}, {task['owner'] or 'no owner'}, lag {seconds_text(task['lag_s'])}"
