"""CREATE VIEW and its SELECT (pure)."""

from __future__ import annotations

from schemas.queries import quoted
from schemas.restore.parser import Parser, Unsupported
from schemas.restore.tokens import TokenKind

#: words that follow a table or a field, so none of them is its alias
_AFTER_TABLE = frozenset([
    "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "WITH", "JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "NATURAL",
    "STRAIGHT_JOIN", "ON", "USING", "UNION", "EXCEPT", "INTERSECT", "FOR", "WINDOW", "PARTITION", "USE",
    "IGNORE", "FORCE", "TABLESAMPLE", "AS",
])  # fmt: skip
_AFTER_FIELD = _AFTER_TABLE | {"FROM", "INTO"}


def view(query: str, sql_mode: int, charset: str, schema: str, stored: str) -> str | None:
    """A CREATE VIEW; None for any other statement."""
    p = Parser(query, sql_mode=sql_mode, charset=charset)
    if not p.accept("CREATE"):
        return None
    replace = "OR REPLACE " * p.accept("OR", "REPLACE")
    if p.next.upper not in ("ALGORITHM", "DEFINER", "SQL", "VIEW"):
        return None
    algorithm, definer, security = "UNDEFINED", "CURRENT_USER", "DEFINER"
    if p.accept("ALGORITHM", "="):
        algorithm = _required(p, ("UNDEFINED", "MERGE", "TEMPTABLE"))
    if p.accept("DEFINER", "="):
        definer = _definer(p)
    if p.accept("SQL", "SECURITY"):
        security = _required(p, ("DEFINER", "INVOKER"))
    p.expect("VIEW")
    name = p.table()
    columns = " " + p.bracketed(p.name, ",") if p.next.upper == "(" else ""
    p.expect("AS")
    wanted = select(p)
    check = _check_option(p)
    p.finish()
    if stored and (qualified := _of_other_databases(stored, schema)):
        wanted = qualified
    head = f"CREATE {replace}ALGORITHM = {algorithm} DEFINER = {definer} SQL SECURITY {security} VIEW {name}{columns}"
    return f"{head} AS {wanted}{check}"


def _required(p: Parser, words: tuple[str, ...]) -> str:
    word = p.one_of(words)
    if not word:
        raise Unsupported(p.next.value)
    return word


def _definer(p: Parser) -> str:
    if p.accept("CURRENT_USER"):
        if p.accept("("):
            p.expect(")")
        return "CURRENT_USER"
    user = _user(p)
    return f"{user}@{_user(p)}" if p.accept("@") else user


def _user(p: Parser) -> str:
    token = p.take()
    if token.kind not in (TokenKind.STRING, TokenKind.QUOTED, TokenKind.WORD):
        raise Unsupported(token.value)
    return quoted(token.value)


def _check_option(p: Parser) -> str:
    if not p.accept("WITH"):
        return ""
    kind = p.one_of(("LOCAL", "CASCADED"))
    p.expect("CHECK", "OPTION")
    return " WITH LOCAL CHECK OPTION" if kind == "LOCAL" else ""


def _of_other_databases(stored: str, schema: str) -> str:
    """The stored SELECT if it reads a database other than the view's: the user's relies on his session then."""
    p = Parser(stored, sql_mode=0, charset="")
    text = select(p)
    p.finish()
    return text if any(name.lower() != schema.lower() for name in p.schemas) else ""


def select(p: Parser) -> str:
    """A SELECT over tables and joins."""
    p.expect("SELECT")
    text = "SELECT " + ("DISTINCT " if p.accept("DISTINCT") else "") + p.several(lambda: _field(p), ",")
    if p.accept("FROM"):
        text += " FROM " + _tables(p)
        if p.accept("WHERE"):
            text += " WHERE " + p.expression()
    if p.accept("GROUP", "BY"):
        text += " GROUP BY " + p.several(lambda: _item(p), ",")
        if p.accept("HAVING"):
            text += " HAVING " + p.expression()
    if p.accept("ORDER", "BY"):
        text += " ORDER BY " + p.several(lambda: _item(p), ",")
    if p.accept("LIMIT"):
        text += " LIMIT " + p.number()
    return text


def _field(p: Parser) -> str:
    if p.accept("*"):
        return "*"
    if (p.ahead(1).upper, p.ahead(2).upper) == (".", "*"):
        name = p.name()
        p.expect(".", "*")
        return name + ".*"
    text = p.expression()
    alias = _alias(p, _AFTER_FIELD)
    return f"{text} AS {alias}" if alias else text


def _alias(p: Parser, words: frozenset[str]) -> str:
    if p.accept("AS"):
        return p.name()
    token = p.next
    if token.kind is TokenKind.QUOTED or (token.kind is TokenKind.WORD and token.upper not in words):
        return p.name()
    if token.kind is TokenKind.STRING:
        raise Unsupported("a string as an alias")
    return ""


def _item(p: Parser) -> str:
    text = p.expression()
    p.accept("ASC")
    return text + " DESC" * p.accept("DESC")


def _tables(p: Parser) -> str:
    """Tables and joins; the parser nests them to the left, and brackets show it."""
    text, joined = _table(p), False
    while True:
        if p.accept(","):
            text, joined = f"({text}) JOIN {_table(p)}", True
            continue
        side = p.one_of(("LEFT", "RIGHT"))
        if side:
            p.accept("OUTER")
        elif not p.accept("INNER"):
            p.accept("CROSS")
        if not p.accept("JOIN"):
            if side or p.next.upper in ("NATURAL", "STRAIGHT_JOIN"):
                raise Unsupported(p.next.value)
            return text
        right = _table(p)
        if joined:
            text = f"({text})"
        text, joined = f"{text} {side + ' ' if side else ''}JOIN {right}", True
        if p.accept("ON"):
            text += " ON " + p.expression()
        elif p.accept("USING"):
            text += " USING " + p.bracketed(p.name, ",")


def _table(p: Parser) -> str:
    if p.next.upper == "(":
        raise Unsupported("a derived table")
    text = p.table()
    alias = _alias(p, _AFTER_TABLE)
    if p.next.upper in ("USE", "IGNORE", "FORCE", "PARTITION", "TABLESAMPLE"):
        raise Unsupported(p.next.value)
    return f"{text} AS {alias}" if alias else text
