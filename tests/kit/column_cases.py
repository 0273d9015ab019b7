"""Tables under ADD, MODIFY and CHANGE COLUMN for every column type, and what must be read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kit.column_run import ADD_COLUMN, FORMS, MODIFY_COLUMN, Cells, ColumnRun, Ddl, TableRun, Write
from tests.kit.row_encoder import encode_v1
from tests.kit.tidb_columns import TYPES, Added, Default, Type, additions, column_info, stored
from tistream.codec.row.layout import SET
from tistream.errors import DecodeError

ADDED, CHANGED = 200, 400
FIRST, D = 2, 1000  # column ids: those of the added columns begin at FIRST
OLD_ROW = encode_v1([], [])  # format v1, without a column

#: column name -> how it is added
CASES = {f"c{n}": added for n, added in enumerate(additions())}


def added_run(cases: Mapping[str, Added], name: str, *, lacking: bool) -> TableRun:
    """A table that gets the columns by ADD COLUMN, and other names by CHANGE COLUMN. Its older rows lack the columns,
    or hold what TiDB reads there."""
    ids = list(enumerate(cases.items(), FIRST))
    cells: Cells = {id_: added.cell for id_, (_, added) in ids}
    older: Cells = {} if lacking else cells
    oldest = OLD_ROW if lacking else cells
    return TableRun(
        name=name,
        ddls=[
            Ddl(
                commit_ts=ADDED,
                type=ADD_COLUMN,
                columns=tuple(added.info(id_, column, id_ - 1) for id_, (column, added) in ids),
            ),
            Ddl(
                commit_ts=CHANGED,
                type=MODIFY_COLUMN,
                columns=tuple(changed(added, id_, column) for id_, (column, added) in ids),
                query="ALTER TABLE t CHANGE COLUMN c d",
            ),
        ],
        writes=[
            *(Write(handle=handle, commit_ts=150, value={}) for handle in (1, 2, 4)),
            Write(handle=3, commit_ts=ADDED + 1, value=older, old=older),
            Write(handle=1, commit_ts=300, value=cells, old=older),
            Write(handle=2, commit_ts=310, old=older),
            Write(handle=5, commit_ts=320, value=cells),
            Write(handle=3, commit_ts=430, value=older, old=oldest),
            Write(handle=4, commit_ts=450, old=oldest),
            Write(handle=6, commit_ts=460, value=cells),
            Write(handle=7, commit_ts=470, value=oldest),
        ],
    )


def changed(added: Added, id_: int, name: str) -> dict[str, Any]:
    """Id and origin default stay. The DEFAULT goes; NULL and NOT NULL change places, but NOT NULL is refused while rows
    hold NULL, and stays where nothing was frozen: a row would become NULL."""
    not_null = not added.frozen or (not added.not_null and added.origin is not None)
    info = column_info(added.type, id_, "d" + name[1:], id_ - 1, not_null=not_null)
    return info | {n: v for n, v in added.info(id_, name, id_ - 1).items() if n.startswith("origin")}


def check_shown(run: ColumnRun) -> None:
    """Each image of each change has the values of the cases."""
    seen = 0
    for event in run.events():
        assert event["type"] != "error", event
        if event["type"] == "ddl" or int(event["commit_ts"]) <= ADDED:
            continue
        letter = "c" if int(event["commit_ts"]) <= CHANGED else "d"
        for image in (event["columns"], event["old"]):
            for name, added in CASES.items() if image is not None else ():
                shown = image[letter + name[1:]]
                assert (shown, type(shown)) == (added.shown, type(added.shown)), (added.name, event["commit_ts"])
            seen += image is not None
    assert seen == 11


PAIRS = {
    f"c{n}_{step}": (kind, TYPES[(n + step) % len(TYPES)])
    for n, kind in enumerate(TYPES)
    for step in (0, 1, len(TYPES) // 3)
}


def modified_run(pairs: Mapping[str, tuple[Type, Type]], name: str, *, lacking: bool) -> TableRun:
    """Rows that TiDB rewrote for the DDL are not in the change feed, but later old values are of that form."""
    ids = list(enumerate(pairs.items(), FIRST))
    then = {id_: stored(old, first(old)) for id_, (_, (old, _)) in ids}
    now = {id_ + D: stored(new, first(new)) for id_, (_, (_, new)) in ids}
    older: Cells = {} if lacking else then
    was = [column_info(old, id_, c, id_ - 1, not_null=True, origin=first(old).text) for id_, (c, (old, _)) in ids]
    becomes = [column_info(new, id_ + D, c, id_ - 1, not_null=True, origin=new.zero.text) for id_, (c, (_, new)) in ids]
    return TableRun(
        name=name,
        ddls=[
            Ddl(commit_ts=ADDED, type=ADD_COLUMN, columns=tuple(was)),
            Ddl(commit_ts=CHANGED, type=MODIFY_COLUMN, columns=tuple(becomes), query="ALTER TABLE t MODIFY COLUMN c"),
        ],
        writes=[
            Write(handle=1, commit_ts=150, value={}),
            Write(handle=2, commit_ts=160, value={}),
            Write(handle=2, commit_ts=300, value=then, old=older),
            Write(handle=1, commit_ts=310, value=older, old=older),
            Write(handle=2, commit_ts=450, value=now, old={**then, **now}),
            Write(handle=3, commit_ts=460, value=now),
        ],
    )


def first(kind: Type) -> Default:
    return kind.defaults[0] if kind.defaults else kind.zero


def labels_run(tp: int) -> TableRun:
    """ENUM or SET: labels are appended, which keeps the column, then put in another order, which makes a new one."""
    labels = (("a", "b"), ("a", "b", "c"), ("c", "a"))
    kinds = [Type(sql="", tp=tp, zero=first(TYPES[0]), defaults=(), charset="utf8mb4", elems=each) for each in labels]
    steps = [(120, FIRST, "c"), (ADDED, FIRST, "c"), (CHANGED, D, "c")]
    return TableRun(
        name="t",
        ddls=[
            Ddl(commit_ts=ts, type=MODIFY_COLUMN, columns=(column_info(kind, id_, name, 1),))
            for (ts, id_, name), kind in zip(steps, kinds, strict=True)
        ],
        writes=[
            Write(handle=1, commit_ts=150, value={FIRST: b"\1"}),
            Write(handle=1, commit_ts=250, value={FIRST: b"\2"}, old={FIRST: b"\1"}),
            Write(handle=2, commit_ts=260, value={FIRST: b"\3"}),
            Write(handle=3, commit_ts=270, value={FIRST: b"\4" if tp == SET else b"\3"}),
            Write(handle=1, commit_ts=450, value={D: b"\1"}, old={D: b"\2"}),
            Write(handle=4, commit_ts=460, value={D: b"\2"}),
        ],
    )


def check_labels(tp: int) -> None:
    """NDJSON and Arrow show the labels of each row's own version."""
    run = ColumnRun([labels_run(tp)])
    expected = {150: "a", 250: "b", 260: "a,b" if tp == SET else "c", 270: "c", 450: "c", 460: "a"}
    texts = {int(e["commit_ts"]): e["columns"]["c"] for e in run.events() if e["type"] != "ddl"}
    assert texts == expected
    for row in run.native("t"):
        value, old = row["c"], row["_old"] and row["_old"]["c"]
        assert (",".join(value) if tp == SET else value) == expected[row["_commit_ts"]]
        assert old is None or "".join(old) == {250: "a", 450: "a"}[row["_commit_ts"]]


OTHER = added_run({"c0": CASES["c0"]}, "other", lacking=True)


def unusable_run(name: str, tp: int, origin: object) -> TableRun:
    kind = Type(sql=name, tp=tp, zero=Default(text="", value=0, shown=0), defaults=(), flen=5, decimal=0, elems=("x",))
    return TableRun(
        name=name,
        ddls=[Ddl(commit_ts=ADDED, type=ADD_COLUMN, columns=(column_info(kind, FIRST, "c", 1, origin=origin),))],
        writes=[
            Write(handle=1, commit_ts=150, value={}),
            Write(handle=2, commit_ts=300, value={FIRST: None}),
            Write(handle=1, commit_ts=310, old={}),
            Write(handle=3, commit_ts=320, value={}),
            Write(handle=2, commit_ts=330, value=OLD_ROW, old={FIRST: None}),
        ],
    )


def check_unknown_type() -> None:
    """Only the rows that hold a value of such a type fail."""
    table = unusable_run("strange", 99, None)
    table.writes += [
        Write(handle=4, commit_ts=340, value={FIRST: b"\1\2\3"}),
        Write(handle=4, commit_ts=350, value={FIRST: None}, old={FIRST: b"\1\2\3"}),
    ]
    run = ColumnRun([table, OTHER])
    check_isolated(run, "strange", {340, 350})
    for form, data in run.written("strange", 320):
        assert data, form


def check_unusable(name: str, tp: int, origin: object) -> None:
    """Only the rows that lack the column fail, and reads of their table."""
    run = ColumnRun([unusable_run(name, tp, origin), OTHER])
    check_isolated(run, name, {310, 320, 330})
    _, batch = run.as_of("other", 500)
    assert batch is not None
    error = _refused(run, name)
    assert error is not None
    assert (error.facts["table"], error.facts["column"]) == (name, "c")


def _refused(run: ColumnRun, name: str) -> DecodeError | None:
    try:
        run.as_of(name, 500)
    except DecodeError as error:
        return error
    return None


def check_isolated(run: ColumnRun, name: str, failing: set[int]) -> None:
    """Exactly these commits of the table are quarantined, in every form; all others come."""
    alone = ColumnRun([TableRun(name="none"), OTHER])
    assert run.native("other") == [{**row, "_table_id": 101} for row in alone.native("other")]
    decoded = run.decoded()
    assert {(q.table, q.commit_ts) for q in decoded.quarantined} == {(name, ts) for ts in failing}
    for form, options in FORMS:
        assert run.lines(form, options)
    events = [e for e in run.events() if e["table"] == name and e["type"] != "ddl"]
    assert {int(e["commit_ts"]) for e in events if e["type"] == "error"} == failing
    whole = {int(e["commit_ts"]) for e in events if e["type"] != "error"}
    assert whole == {w.commit_ts for w in run.tables[100].writes} - failing
    assert {row["_commit_ts"] for row in run.native(name)} == whole
