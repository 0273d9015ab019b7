"""The key space as a strip of cells: who owns what, or how far behind it is. Pure.

Cells are equally wide, in key order. More ranges than CELLS_MAX share cells, and a cell shows the worst of its ranges.
Each cell is a link, so that it can be reached by keyboard, and says in words what it is.
"""

from __future__ import annotations

from typing import Any

from tistream.admin.core.units import duration_text

CELLS_MAX = 160
OWNER_COLOURS = 6
_WIDTH, _GAP = 1000.0, 2.0
_WORST = {"stopped": 4, "silent": 3, "waiting": 2, "paused": 1, "running": 0}


def owner_strip(ranges: list[dict[str, Any]], colours: dict[str, int]) -> list[dict[str, Any]]:
    """Cells coloured by owner; those that do not run by what is wrong."""
    return _cells(ranges, lambda found: _owner_class(found, colours))


def states_in(ranges: list[dict[str, Any]]) -> list[str]:
    """What is wrong with some of the ranges, the worst first: a strip shows it instead of the owner."""
    return sorted({task["state"] for task in ranges} - {"running"}, key=lambda state: -_WORST[state])


def lag_strip(ranges: list[dict[str, Any]], watermark_gaps: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Cells coloured by lag; those with a hole stand out."""

    def colour(found: list[dict[str, Any]]) -> str:
        told = [watermark_gap for task in found for watermark_gap in watermark_gaps.get(task["task_id"], ())]
        if told:
            return "gap" if any(watermark_gap["cause"] == "watermark_gap" for watermark_gap in told) else "late3"
        return lag_class(max((task["lag_ms"] or 0 for task in found), default=0))

    return _cells(ranges, colour)


def lag_class(lag_ms: float) -> str:
    """Below 5 s, below 30 s, below 5 min, above."""
    return f"late{lateness(lag_ms)}"


def lateness(lag_ms: float) -> int:
    """0 below 5 s, 1 below 30 s, 2 below 5 min, 3 above."""
    return next((n for n, bound in enumerate((5_000, 30_000, 300_000)) if lag_ms < bound), 3)


def owner_colours(names: list[str]) -> dict[str, int]:
    """A colour's number for each worker, the same for the same list of names."""
    return {name: n % OWNER_COLOURS for n, name in enumerate(sorted(names))}


def _cells(ranges: list[dict[str, Any]], colour: Any) -> list[dict[str, Any]]:
    size = max(1, -(-len(ranges) // CELLS_MAX))
    groups = [ranges[at : at + size] for at in range(0, len(ranges), size)]
    width = (_WIDTH + _GAP) / max(1, len(groups))
    return [
        {
            "x": round(n * width, 1),
            "width": round(max(width - _GAP, width / 2), 1),
            "colour": colour(found),
            "href": f"/tasks/{found[0]['task_id']}",
            "words": _words(found),
        }
        for n, found in enumerate(groups)
    ]


def _owner_class(found: list[dict[str, Any]], colours: dict[str, int]) -> str:
    worst = max(found, key=lambda task: _WORST[task["state"]])
    if worst["state"] != "running":
        return str(worst["state"])
    owners = {task["owner"] for task in found}
    return f"own{colours[owners.pop()]}" if len(owners) == 1 else "own-several"


def _words(found: list[dict[str, Any]]) -> str:
    if len(found) > 1:
        owners = sorted({task["owner"] or "nobody" for task in found})
        return f"{len(found)} ranges from {found[0]['label']} on: {', '.join(owners[:4])}"
    task = found[0]
    return f"{task['label']}: {task['state']}, {task['owner'] or 'no owner'}, lag {duration_text(task['lag_ms'])}"
