"""Random tables, changes and filters, and a slow reference: every change of the full page is decoded and asked, one by
one, in plain Python.

A case is made with a generator of random numbers, so that Hypothesis and plain seeds can both make one. Expressions
are written as text together with a function of a row, which knows nothing of the parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from reading.core.changes import DELETE, INSERT, UPDATE
from reading.filters import parse_filter, select_rows
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from tests.kit.column_run import ADD_COLUMN, TENANT, ColumnRun, Ddl, TableRun, Write
from tests.kit.made_rows import without_old_values
from tests.kit.tidb_columns import Default, Type, column_info
from tistream.codec.row.encode import cell, pack_time
from tistream.codec.row.layout import ColumnSpec

Row = dict[str, Any]  #: column -> a value that Python compares as SQL should; None is NULL
Asked = Callable[[Row], bool | None]
NAMES = ("orders", "Audit_log")
ALL = Scope(tenant=TENANT)
UTF8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_FILTERS = 6  # of one run, which takes longest to make
_ZERO = Default(text="", value=0, shown=0)


@dataclass(frozen=True, kw_only=True)
class Sort:
    """A type of column: its definition, values in storage form, the same to compare, and constants of it."""

    type: Type
    values: tuple[Any, ...]
    compared: Callable[[Any], Any]
    constants: tuple[tuple[str, Any], ...]  #: as written, to compare
    is_text: bool = False

    def cell(self, value: Any) -> bytes | None:
        """The value as a row stores it."""
        if value is None:
            return None
        kind = self.type
        spec = ColumnSpec(
            id=0, name="", tp=kind.tp, unsigned=bool(kind.flag & 32), flen=kind.flen, decimal=kind.decimal
        )
        return cell(spec, value)


def _type(sql: str, tp: int, **more: Any) -> Type:
    return Type(sql=sql, tp=tp, zero=_ZERO, defaults=(), **more)


def _moment(*parts: int) -> int:
    return pack_time(*parts)


LABELS = ("new", "Paid", "é")
SORTS: dict[str, Sort] = {
    "number": Sort(
        type=_type("INT", 3, flen=11),
        values=(0, -1, 7, 12, -(2**31), 2**31 - 1),
        compared=Decimal,
        constants=(
            *((each, Decimal(each)) for each in ("7", "-1", "7.5", "-0.5", "2147483648", "-3e9", "1e30", "12.0")),
            *(("'12'", Decimal(12)), ("0x0C", Decimal(12)), ("TRUE", Decimal(1)), ("FALSE", Decimal(0))),
        ),
    ),
    "huge": Sort(
        type=_type("BIGINT UNSIGNED", 8, flen=20, flag=32),
        values=(0, 5, 2**63, 2**64 - 1),
        compared=Decimal,
        constants=tuple(
            (each, Decimal(each))
            for each in ("5", "-1", "9223372036854775808", "18446744073709551615", "18446744073709551616", "4.9")
        ),
    ),
    "price": Sort(
        type=_type("DECIMAL(10,2)", 246, flen=10, decimal=2),
        values=(Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99"), Decimal("10.00")),
        compared=Decimal,
        constants=tuple((each, Decimal(each)) for each in ("1.5", "1.505", "10", "-99999999.99", "1e9", "-1e9", "0")),
    ),
    "ratio": Sort(
        type=_type("DOUBLE", 5, flen=22),
        values=(0.0, -0.0, 0.1, 1e100, -2.5),
        compared=float,
        constants=tuple((each, float(each)) for each in ("0", "0.1", "1e100", "-2.5", "1e400", "3")),
    ),
    "name": Sort(
        type=_type("VARCHAR(20)", 15, flen=20, **UTF8),
        values=("", "ann", "Ann", "ann ", "b%b", "été", "o'x\n"),
        compared=str,
        constants=(("'ann'", "ann"), ('"Ann"', "Ann"), ("'ann '", "ann "), ("'été'", "été"), ("'o''x\\n'", "o'x\n"),
                   ("''", ""), ("X'616E6E'", "ann")),
        is_text=True,
    ),
    "raw": Sort(
        type=_type("VARBINARY(20)", 15, flen=20),
        values=(b"", b"ab", b"\xff\x00", b"a"),
        compared=bytes,
        constants=(("X'FF00'", b"\xff\x00"), ("'ab'", b"ab"), ("0x61", b"a"), ("X''", b"")),
    ),
    "at": Sort(
        type=_type("DATETIME(6)", 12, decimal=6),
        values=(_moment(2024, 2, 29, 12, 30, 0, 5), _moment(0, 0, 0), _moment(2024, 3, 1), _moment(1999, 12, 31, 23)),
        compared=int,
        constants=(("'2024-02-29 12:30:00.000005'", _moment(2024, 2, 29, 12, 30, 0, 5)), ("'0000-00-00'", 0),
                   ("TIMESTAMP '2024-03-01'", _moment(2024, 3, 1)), ("DATE '2000-1-1'", _moment(2000, 1, 1))),
    ),
    "took": Sort(
        type=_type("TIME(3)", 11, decimal=3),
        values=(0, -3600 * 10**9, 90 * 10**9 + 5 * 10**6),
        compared=int,
        constants=(
            *(("'00:01:30.005'", 90 * 10**9 + 5 * 10**6), ("'-01:00'", -3600 * 10**9)),
            *(("'838:59:59'", 3020399 * 10**9), ("'00:00'", 0)),
        ),
    ),
    "state": Sort(
        type=_type("ENUM", 247, elems=LABELS, **UTF8),
        values=(1, 2, 3),
        compared=lambda index: LABELS[index - 1],
        constants=(("'new'", "new"), ("'Paid'", "Paid"), ("'paid'", "paid"), ("'é'", "é")),
        is_text=True,
    ),
}  # fmt: skip
PATTERNS = (
    ("'a%'", lambda text: text.startswith("a")),
    ("'_nn%'", lambda text: len(text) >= 3 and text[1:3] == "nn"),
    ("'%\\%b'", lambda text: text.endswith("%b")),
    ("'b!%b' ESCAPE '!'", lambda text: text == "b%b"),
    ("'%'", lambda text: True),
    ("'_t_'", lambda text: len(text) == 3 and text[1] == "t"),
    ("'é'", lambda text: text == "é"),
)
TABLES: tuple[tuple[str, frozenset[str]], ...] = (
    ("d.*", frozenset(NAMES)),
    ("*.*, !d.audit_*", frozenset({"orders"})),
    ("D.ORDERS", frozenset({"orders"})),
    ('d."Audit_log"', frozenset({"Audit_log"})),
    ("/^d$/./o./", frozenset(NAMES)),
    ("?.[a-n]*", frozenset({"Audit_log"})),
    ("e.*", frozenset()),
    ("*.*,!d.*,d.orders", frozenset({"orders"})),
    ("d.[!o]*", frozenset({"Audit_log"})),
)


@dataclass(kw_only=True)
class Case:
    """Tables with changes, a filter, and the filter's parts as the reference understands them."""

    run: ColumnRun
    given: dict[str, str] = field(default_factory=dict)
    tables: frozenset[str] = frozenset(NAMES)
    where: Asked | None = None
    where_columns: frozenset[str] = frozenset()
    shown: frozenset[str] | None = None
    changed: frozenset[str] | None = None
    ops: frozenset[str] = frozenset(KINDS.values())
    ignored: list[tuple[frozenset[str], frozenset[str], dict[str, Asked]]] = field(default_factory=list)


class Maker:
    """Makes one case."""

    def __init__(self, rand: Random, parts: Collection[str] = ()) -> None:
        """`parts`: the parameters that the filter has; without them any."""
        self.rand, self._parts = rand, parts
        columns = rand.sample(sorted(SORTS), 4)
        self.columns = dict(enumerate(columns, 2))  # by column id

    def case(self, run: ColumnRun) -> Case:
        """A filter for the run."""
        rand = self.rand
        case = Case(run=run)
        if self._has("tables", 0.4):
            case.given["tables"], case.tables = rand.choice(TABLES)
        if self._has("where", 0.7):
            case.given["where"], case.where, case.where_columns = self.condition(2)
        if self._has("ops", 0.4):
            case.ops = frozenset(rand.sample(sorted(KINDS.values()), rand.randint(1, 2)))
            case.given["ops"] = ",".join(sorted(case.ops))
        if self._has("changed", 0.4):
            names = rand.sample([*self.columns.values()], rand.randint(1, 2))
            case.changed = frozenset(names)
            case.given["changed"] = ",".join(names)
        if self._has("columns", 0.5):
            names = rand.sample([*self.columns.values()], rand.randint(1, 3))
            case.shown = frozenset(names)
            case.given["columns"] = ", ".join(names)
            if rand.random() < 0.5:
                case.shown = frozenset(self.columns.values()) - case.shown
                case.given["columns"] = "*" + "".join(f",!{name.upper()}" for name in names)
        if self._has("event_filters", 0.4):
            self._event_filters(case)
        return case

    def _has(self, name: str, probability: float) -> bool:
        return name in self._parts if self._parts else self.rand.random() < probability

    def _event_filters(self, case: Case) -> None:
        rand = self.rand
        written: list[dict[str, Any]] = []
        for _ in range(rand.randint(1, 2)):
            text, tables = rand.choice(TABLES)
            kinds = rand.sample(sorted(KINDS.values()), rand.randint(0, 1))
            given: dict[str, Any] = {"matcher": [text], "ignore-event": kinds}
            conditions: dict[str, Asked] = {}
            for name in ("insert-", "update-old-", "update-new-", "delete-"):
                if rand.random() < 0.3:
                    given[f"ignore-{name}value-expr"], conditions[name], _ = self.condition(1)
            written.append(given)
            case.ignored.append((tables, frozenset(kinds), conditions))
        case.given["event_filters"] = json.dumps(written)

    # ---- changes

    def run(self) -> ColumnRun:
        """Two tables with changes."""
        rand = self.rand
        infos = tuple(column_info(SORTS[name].type, id_, name, id_ - 1) for id_, name in self.columns.items())
        runs = [TableRun(name=name, ddls=[Ddl(commit_ts=110, type=ADD_COLUMN, columns=infos)]) for name in NAMES]
        rows_then: dict[tuple[int, int], dict[int, bytes | None]] = {}
        for commit_ts in range(120, 120 + rand.randint(3, 40)):
            at, handle = rand.randint(0, 1), rand.randint(-1, 3)
            old = rows_then.pop((at, handle), None)
            value = None
            if old is None or rand.random() < 0.7:
                keeps = {} if old is None else {id_: v for id_, v in old.items() if rand.random() < 0.6}
                value = {id_: self._cell(name) for id_, name in self.columns.items()} | keeps
                rows_then[at, handle] = value
            runs[at].writes.append(Write(handle=handle, commit_ts=commit_ts, value=value, old=old))
        run = ColumnRun(runs)
        if rand.random() < 0.25:
            run.rows = without_old_values(run.rows)
        return run

    def _cell(self, name: str) -> bytes | None:
        return None if self.rand.random() < 0.2 else SORTS[name].cell(self.rand.choice(SORTS[name].values))

    # ---- expressions

    def condition(self, depth: int) -> tuple[str, Asked, frozenset[str]]:
        """(text, what it means, the columns in it)."""
        rand = self.rand
        if depth == 0 or rand.random() < 0.4:
            return self._test()
        if rand.random() < 0.25:
            text, inner, names = self.condition(depth - 1)
            return f"NOT ({text})", lambda row: _not(inner(row)), names
        word = rand.choice(["AND", "OR"])
        parts = [self.condition(depth - 1) for _ in range(rand.randint(2, 3))]
        join = _every if word == "AND" else _some
        text = f" {word} ".join(f"({text})" for text, _, _ in parts)
        return (
            text,
            lambda row: join([condition(row) for _, condition, _ in parts]),
            frozenset().union(*(n for _, _, n in parts)),
        )

    def _test(self) -> tuple[str, Asked, frozenset[str]]:
        rand = self.rand
        if rand.random() < 0.08:
            return "ghost = 1", lambda row: None, frozenset({"ghost"})
        if rand.random() < 0.15:
            op, number = rand.choice(["=", "<", ">=", "<>"]), rand.randint(-1, 3)
            return f"{number} {_SWAPPED[op]} id", lambda row: _compared(op, row["id"], number), frozenset({"id"})
        name = rand.choice([*self.columns.values()])
        sort, named = SORTS[name], frozenset({name})
        shown = rand.choice([name, name.upper(), f"`{name}`"])
        negated = rand.choice(["", "NOT "])
        finish = _not if negated else lambda value: value
        form = rand.choice(["compare", "compare", "in", "between", "null", *(["like"] if sort.is_text else [])])
        if form == "null":
            return f"{shown} IS {negated}NULL", lambda row: (row[name] is None) != bool(negated), named
        if form == "like":
            pattern, test = rand.choice(PATTERNS)
            return (
                f"{shown} {negated}LIKE {pattern}",
                lambda row: finish(None if row[name] is None else test(row[name])),
                named,
            )
        some = [*sort.constants, ("NULL", None)]
        if form == "in":
            items = [rand.choice(some) for _ in range(rand.randint(1, 4))]
            text = f"{shown} {negated}IN ({', '.join(text for text, _ in items)})"
            return text, lambda row: finish(_some([_compared("=", row[name], value) for _, value in items])), named
        if form == "between":
            (low_text, low), (high_text, high) = rand.choice(some), rand.choice(some)
            return (
                f"{shown} {negated}between {low_text} and {high_text}",
                lambda row: finish(_every([_compared(">=", row[name], low), _compared("<=", row[name], high)])),
                named,
            )
        op, (text, value) = rand.choice(["=", "<>", "<", "<=", ">", ">="]), rand.choice(some)
        return f"{shown} {op} {text}", lambda row: _compared(op, row[name], value), named


_SWAPPED = {"=": "=", "<": ">", ">=": "<=", "<>": "!="}


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _every(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _some(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _compared(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, str):
        left, right = left.encode("utf-32-be"), right.encode("utf-32-be")  # by code points
    answers: dict[str, bool] = {
        "=": left == right, "<>": left != right, "<": left < right, "<=": left <= right, ">": left > right,
        ">=": left >= right,
    }  # fmt: skip
    return answers[op]


# ---- the reference


@dataclass(frozen=True, kw_only=True)
class Told:
    """One change as a reader sees it; images in storage form."""

    table: str
    commit_ts: int
    kind: str
    after: Row | None
    before: Row | None


def told(case: Case, *, filtered: bool) -> list[Told]:
    """The changes of the page: all of them, or those that the product's filter lets pass."""
    rows, shown = case.run.rows, None
    if filtered:
        chosen = parse_filter(case.given)
        selected = select_rows(chosen, case.run.history, rows, ALL)
        assert not selected.quarantined
        rows, shown = selected.rows, chosen.shown
    decoding = decode_rows(case.run.history, rows, ALL, *([shown] if shown else []))
    assert not decoding.quarantined
    told_rows = []
    for part in decoding.changes:
        after, before = part.after.to_pylist(), part.before.to_pylist()
        for n, kind in enumerate(part.kind.tolist()):
            assert kind != DELETE or not any(value is not None for value in after[n].values())
            assert kind != INSERT or not any(value is not None for value in before[n].values())
            told_rows.append(
                Told(
                    table=part.table.name, commit_ts=int(part.commit_ts[n]), kind=KINDS[kind],
                    after=None if kind == DELETE else after[n], before=None if kind == INSERT else before[n],
                )
            )  # fmt: skip
    return sorted(told_rows, key=lambda each: each.commit_ts)


def expected(case: Case) -> list[Told]:
    """The changes that pass, by the reference."""
    unknown = bool(case.run.rows["flags"].to_numpy().any())
    changes = (passing(case, each, unknown) for each in told(case, filtered=False))
    return [each for each in changes if each is not None]


def passing(case: Case, each: Told, unknown: bool) -> Told | None:
    """The change as it passes; None when it does not."""
    if each.table not in case.tables:
        return None
    after, before = _comparable(each.after), _comparable(each.before)
    for tables, kinds, conditions in case.ignored:
        if each.table in tables and (
            each.kind in kinds
            or (each.kind == "insert" and _holds(conditions.get("insert-"), after))
            or (each.kind == "update" and _holds(conditions.get("update-old-"), before))
            or (each.kind == "update" and _holds(conditions.get("update-new-"), after))
            or (each.kind == "delete" and _holds(conditions.get("delete-"), before))
        ):
            return None
    kind = each.kind if case.where is None else _moved(case, each.kind, after, before, unknown)
    if kind == "update" and case.changed is not None:
        assert each.after is not None
        assert each.before is not None
        if all(each.after[name] == each.before[name] for name in case.changed):
            return None
    if kind not in case.ops:
        return None
    old = each.before
    if kind == "delete" and each.before is None:
        old = dict.fromkeys(each.after or {}) | {"id": (each.after or {})["id"]}
    return Told(
        table=each.table, commit_ts=each.commit_ts, kind=kind,
        after=None if kind == "delete" else _projected(case, each.after),
        before=None if kind == "insert" else _projected(case, old),
    )  # fmt: skip


def _moved(case: Case, kind: str, after: Row | None, before: Row | None, unknown: bool) -> str:
    new = after is not None and _holds(case.where, after)
    old = before is not None and _holds(case.where, before)
    if unknown and not case.where_columns <= {"id"}:
        old = True
        if kind == "insert":
            return "insert" if new else "delete"
    if kind == "insert":
        return kind if new else "nothing"
    if kind == "delete":
        return kind if old else "nothing"
    return {(True, True): "update", (True, False): "insert", (False, True): "delete"}.get((new, old), "nothing")


def _holds(condition: Asked | None, row: Row | None) -> bool:
    return condition is not None and row is not None and condition(row) is True


def _comparable(image: Row | None) -> Row | None:
    if image is None:
        return None
    return {
        name: value if value is None or name == "id" else SORTS[name].compared(value) for name, value in image.items()
    }


def _projected(case: Case, image: Row | None) -> Row | None:
    if image is None or case.shown is None:
        return image
    return {name: value for name, value in image.items() if name == "id" or name in case.shown}


def check(rand: Random, *parts: str) -> None:
    """Make tables, and filters of these parameters or any; AssertionError when product and reference differ."""
    maker = Maker(rand, parts)
    run = maker.run()
    for _ in range(_FILTERS):
        case = maker.case(run)
        assert told(case, filtered=True) == expected(case), case.given
