"""DDL statements of databases, tables and indexes (pure)."""

from __future__ import annotations

from collections.abc import Callable

from schemas.restore.columns import default, definition, index_options, key, parts
from schemas.restore.parser import Parser, Unsupported
from schemas.restore.tables import Option, definitions, options, partitioning, shown

_NOT_IN_LISTS = ("PARTITION BY ", "REMOVE PARTITIONING")  #: parts of an ALTER without a comma before them


def statement(p: Parser) -> str:
    """The whole statement."""
    if p.accept("CREATE"):
        return _create(p)
    if p.accept("ALTER"):
        if p.accept("DATABASE") or p.accept("SCHEMA"):
            return f"ALTER DATABASE {p.name()}{_database_options(p)}"
        p.expect("TABLE")
        return _alter(p)
    if p.accept("DROP", "INDEX"):
        return f"DROP INDEX {_if(p, 'EXISTS')}{p.name()} ON {_after(p, 'ON')}"
    if p.accept("RECOVER", "TABLE"):
        return f"RECOVER TABLE {_no_job(p)}"
    if p.accept("FLASHBACK", "TABLE"):
        name = p.table()
        return f"FLASHBACK TABLE {name}" + (f" TO {p.name()}" if p.accept("TO") else "")
    raise Unsupported(p.next.value)


def _after(p: Parser, word: str) -> str:
    p.expect(word)
    return p.table()


def _no_job(p: Parser) -> str:
    if p.next.upper == "BY":
        raise Unsupported("BY JOB")
    return p.table()


def _if(p: Parser, *words: str) -> str:
    return f"IF {' '.join(words)} " if p.accept("IF", *words) else ""


def _create(p: Parser) -> str:
    if p.accept("DATABASE") or p.accept("SCHEMA"):
        return f"CREATE DATABASE {_if(p, 'NOT', 'EXISTS')}{p.name()}{_database_options(p)}"
    unique = "UNIQUE " * p.accept("UNIQUE")
    if p.accept("INDEX"):
        head = f"CREATE {unique}INDEX {_if(p, 'NOT', 'EXISTS')}{p.name()} ON {_after(p, 'ON')}"
        return f"{head} {parts(p)}{index_options(p)}"
    temporary = p.accept("GLOBAL", "TEMPORARY")
    if unique or not p.accept("TABLE"):
        raise Unsupported(p.next.value)
    head = f"CREATE {'GLOBAL TEMPORARY ' * temporary}TABLE {_if(p, 'NOT', 'EXISTS')}{p.table()}"
    if p.accept("LIKE"):
        return f"{head} LIKE {p.table()}" + _on_commit(p, temporary)
    if p.accept("(", "LIKE"):
        name = p.table()
        p.expect(")")
        return f"{head} LIKE {name}" + _on_commit(p, temporary)
    text = head + _elements(p) + shown(options(p))
    if p.accept("PARTITION", "BY"):
        text += " PARTITION BY " + partitioning(p)
    return text + _on_commit(p, temporary)


def _on_commit(p: Parser, temporary: bool) -> str:
    if not temporary:
        return ""
    p.expect("ON", "COMMIT", "DELETE", "ROWS")
    return " ON COMMIT DELETE ROWS"


def _elements(p: Parser) -> str:
    """Columns, then keys, whatever their order was."""
    columns: list[str] = []
    keys: list[str] = []
    p.expect("(")
    while True:
        text = key(p) if _begins_key(p) else ""
        if text:
            keys.append(text)
        else:
            columns.append(definition(p))
        if not p.accept(","):
            break
    p.expect(")")
    return f" ({','.join([*columns, *keys])})"


def _begins_key(p: Parser) -> bool:
    return p.next.upper in ("PRIMARY", "UNIQUE", "INDEX", "KEY", "FOREIGN", "CONSTRAINT")


def _database_options(p: Parser) -> str:
    text = ""
    while p.next.upper in ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE"):
        p.accept("DEFAULT")
        if p.accept("CHARACTER", "SET") or p.accept("CHARSET"):
            p.accept("=")
            text += f" CHARACTER SET = {p.charset_name().lower()}"
        else:
            p.expect("COLLATE")
            p.accept("=")
            text += f" COLLATE = {p.charset_name().lower()}"
    return text


def _alter(p: Parser) -> str:
    text = f"ALTER TABLE {p.table()}"
    first = True
    while True:
        part = _part(p)
        text += (" " if first or part.startswith(_NOT_IN_LISTS) else ", ") + part
        first = False
        if not p.accept(",") and p.next.upper not in ("PARTITION", "REMOVE"):
            return text


def _part(p: Parser) -> str:
    """One part of an ALTER TABLE."""
    parts_of: dict[str, Callable[[Parser], str]] = {
        "ADD": _add, "DROP": _drop, "MODIFY": _modify, "CHANGE": _change, "RENAME": _rename, "ALTER": _alter_column,
    }  # fmt: skip
    if (word := p.next.upper) in parts_of:
        p.take()
        return parts_of[word](p)
    if p.accept("CONVERT", "TO"):
        return _charset(p, "CONVERT TO ")
    if p.accept("TRUNCATE", "PARTITION"):
        return f"TRUNCATE PARTITION {p.several(p.name, ',')}"
    if p.accept("REORGANIZE", "PARTITION"):
        names = p.several(p.name, ",")
        p.expect("INTO")
        return f"REORGANIZE PARTITION {names} INTO {definitions(p, ', ')}"
    if p.accept("COALESCE", "PARTITION"):
        return f"COALESCE PARTITION {p.number()}"
    if p.accept("REMOVE", "PARTITIONING"):
        return "REMOVE PARTITIONING"
    if p.accept("REMOVE", "TTL"):
        return "/*T![ttl] REMOVE TTL */"
    if p.accept("PARTITION", "BY"):
        return "PARTITION BY " + partitioning(p)
    return _table_options(options(p))


def _table_options(options_given: list[Option]) -> str:
    if [option.kind for option in options_given] == ["charset", "collate"]:
        return f"CHARACTER SET {options_given[0].value} COLLATE {options_given[1].value}"
    text = shown(options_given).strip()
    if not text:
        raise Unsupported("no option")
    return text


def _charset(p: Parser, before: str) -> str:
    if not (p.accept("CHARACTER", "SET") or p.accept("CHARSET")):
        raise Unsupported(p.next.value)
    text = f"{before}CHARACTER SET {p.charset_name().upper()}"
    return text + (f" COLLATE {p.charset_name().upper()}" if p.accept("COLLATE") else "")


def _place(p: Parser) -> str:
    if p.accept("FIRST"):
        return " FIRST"
    return f" AFTER {p.name()}" if p.accept("AFTER") else ""


def _add(p: Parser) -> str:
    if _begins_key(p):
        return "ADD " + key(p)
    if p.accept("PARTITION"):
        if p.accept("PARTITIONS"):
            return f"ADD PARTITION PARTITIONS {p.number()}"
        return f"ADD PARTITION {_if(p, 'NOT', 'EXISTS')}{definitions(p, ', ')}"
    p.accept("COLUMN")
    if p.next.upper == "(":
        raise Unsupported("several columns at once")
    return f"ADD COLUMN {_if(p, 'NOT', 'EXISTS')}{definition(p)}{_place(p)}"


def _drop(p: Parser) -> str:
    if p.accept("PRIMARY", "KEY"):
        return "DROP PRIMARY KEY"
    if p.accept("INDEX") or p.accept("KEY"):
        return f"DROP INDEX {_if(p, 'EXISTS')}{p.name()}"
    if p.accept("FOREIGN", "KEY"):
        return f"DROP FOREIGN KEY {_if(p, 'EXISTS')}{p.name()}"
    if p.accept("PARTITION"):
        return f"DROP PARTITION {_if(p, 'EXISTS')}{p.several(p.name, ',')}"
    p.accept("COLUMN")
    return f"DROP COLUMN {_if(p, 'EXISTS')}{p.name()}"


def _modify(p: Parser) -> str:
    p.accept("COLUMN")
    return f"MODIFY COLUMN {_if(p, 'EXISTS')}{definition(p)}{_place(p)}"


def _change(p: Parser) -> str:
    p.accept("COLUMN")
    return f"CHANGE COLUMN {_if(p, 'EXISTS')}{p.name()} {definition(p)}{_place(p)}"


def _rename(p: Parser) -> str:
    if p.accept("COLUMN"):
        what = "COLUMN"
    elif p.accept("INDEX") or p.accept("KEY"):
        what = "INDEX"
    else:
        raise Unsupported(p.next.value)
    old = p.name()
    p.expect("TO")
    return f"RENAME {what} {old} TO {p.name()}"


def _alter_column(p: Parser) -> str:
    if p.accept("INDEX"):
        name = p.name()
        visible = p.one_of(("VISIBLE", "INVISIBLE"))
        if not visible:
            raise Unsupported(p.next.value)
        return f"ALTER INDEX {name} {visible}"
    p.accept("COLUMN")
    name = p.name()
    if p.accept("DROP", "DEFAULT"):
        return f"ALTER COLUMN {name} DROP DEFAULT"
    p.expect("SET", "DEFAULT")
    return f"ALTER COLUMN {name} SET DEFAULT {default(p)}"
