"""Filters of changes: which tables, columns, kinds of change and rows a reader gets. See docs/filters.md.

    parse_filter    the parameters of a request -> Filter, or FilterInvalid
    Filter          what was asked; `table_ids`, `keeps_ddl`, `shown` and `check_names` apply it to a schema history
    select_rows     the rows of a page that pass, before they are decoded
    refused         FilterInvalid with parameter, place and cause

A position in the log does not depend on a filter: a page ends where it would end without one, or later.
"""

from __future__ import annotations

from reading.filters.core.refusal import TEXT_MAX, refused
from reading.filters.filter import FILTER_NAMES, NO_FILTER, Filter, Part, parse_filter, part_name
from reading.filters.select import Selected, select_rows

__all__ = [
    "FILTER_NAMES",
    "NO_FILTER",
    "TEXT_MAX",
    "Filter",
    "Part",
    "Selected",
    "parse_filter",
    "part_name",
    "refused",
    "select_rows",
]
