"""Findings as a table for people and as data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tistream.diagnostics.findings import Finding, Verdict

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def as_data(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One dictionary for each finding: name, verdict, words, facts."""
    return [asdict(finding) for finding in findings]


def as_table(title: str, findings: Sequence[Finding]) -> Table:
    """One row for each finding."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for column in ("check", "", "what was found"):
        table.add_column(column, overflow="fold")
    for each in findings:
        table.add_row(each.name, f"[{_COLOURS[each.verdict]}]{each.verdict}[/]", escape(each.words))
    return table


def failed(findings: Sequence[Finding]) -> list[str]:
    """Names of the checks that failed."""
    return [each.name for each in findings if each.verdict is Verdict.FAIL]
