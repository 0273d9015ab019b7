"""Findings as data for programs, and as the columns of a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from tistream.diagnostics.findings import Finding, Verdict

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
#: headings, and their values in what `as_data` returns
COLUMNS: list[tuple[str, Callable[[Any], object]]] = [
    ("check", lambda f: f["name"]),
    ("", lambda f: Text(f["verdict"], style=_COLOURS[f["verdict"]])),
    ("what was found", lambda f: f["words"]),
]


def as_data(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One dictionary for each finding: name, verdict, words, facts."""
    return [asdict(finding) for finding in findings]


def failed(findings: Sequence[Finding]) -> list[str]:
    """Names of the checks that failed."""
    return [each.name for each in findings if each.verdict is Verdict.FAIL]
