"""Definitions of columns and indexes: types, options, keys (pure)."""

from __future__ import annotations

from schemas.restore.parser import NOW, SPECIAL, Parser, Unsupported
from schemas.restore.tokens import TokenKind

_INTEGERS = {
    "TINYINT": "TINYINT", "INT1": "TINYINT", "SMALLINT": "SMALLINT", "INT2": "SMALLINT", "MEDIUMINT": "MEDIUMINT",
    "INT3": "MEDIUMINT", "MIDDLEINT": "MEDIUMINT", "INT": "INT", "INTEGER": "INT", "INT4": "INT", "BIGINT": "BIGINT",
    "INT8": "BIGINT",
}  # fmt: skip
_DECIMALS = {"DECIMAL": "DECIMAL", "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "FIXED": "DECIMAL"}
_FLOATS = {"FLOAT": "FLOAT", "FLOAT4": "FLOAT", "DOUBLE": "DOUBLE", "FLOAT8": "DOUBLE", "REAL": "DOUBLE"}
#: type of text -> the type of bytes that it is with CHARACTER SET binary
_TEXTS = {
    "CHAR": "BINARY", "VARCHAR": "VARBINARY", "TINYTEXT": "TINYBLOB", "TEXT": "BLOB", "MEDIUMTEXT": "MEDIUMBLOB",
    "LONGTEXT": "LONGBLOB",
}  # fmt: skip
_SIZED = frozenset({"BINARY", "VARBINARY", "BLOB", "DATETIME", "TIMESTAMP", "TIME", "YEAR", "VECTOR"})
_PLAIN = frozenset({"TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "DATE", "JSON"})
_LABELLED = frozenset({"ENUM", "SET"})
_CLUSTERED = ("CLUSTERED", "NONCLUSTERED")


def definition(p: Parser) -> str:
    """A column: name, type, options."""
    return f"{p.name()} {column_type(p)}{_options(p)}"


def column_type(p: Parser) -> str:
    """A type in its full form."""
    word = p.take().upper
    if word in ("BOOL", "BOOLEAN"):
        return "TINYINT(1)"
    if word in _INTEGERS:
        return _INTEGERS[word] + _size(p) + _sign(p)
    if word in _DECIMALS:
        return _DECIMALS[word] + _sizes(p) + _sign(p)
    if word in _FLOATS:
        p.accept("PRECISION")
        sizes = _sizes(p)
        if sizes and "," not in sizes:
            raise Unsupported("FLOAT(p)")
        return _FLOATS[word] + sizes + _sign(p)
    if word == "BIT":
        return "BIT" + (_size(p) or "(1)")
    if word == "CHARACTER":
        word = "CHAR"
    if word in _TEXTS:
        if p.next.upper == "VARYING":
            raise Unsupported("CHARACTER VARYING")
        size, charset = _size(p), _charset(p)
        if charset == "BINARY":
            return _TEXTS[word] + size
        return word + size + (f" CHARACTER SET {charset}" if charset else "")
    if word in _SIZED:
        return word + _size(p)
    if word in _LABELLED:
        labels, charset = p.bracketed(p.string, ","), _charset(p)
        if charset:
            raise Unsupported("a charset of labels")
        return word + labels
    if word in _PLAIN:
        return word
    raise Unsupported(word)


def _size(p: Parser) -> str:
    if not p.accept("("):
        return ""
    number = p.number()
    p.expect(")")
    return f"({number})"


def _sizes(p: Parser) -> str:
    return p.bracketed(p.number, ",") if p.next.upper == "(" else ""


def _sign(p: Parser) -> str:
    signs = set()
    while word := p.one_of(("UNSIGNED", "SIGNED", "ZEROFILL")):
        signs.add(word)
    unsigned = bool(signs & {"UNSIGNED", "ZEROFILL"})
    return " UNSIGNED" * unsigned + " ZEROFILL" * ("ZEROFILL" in signs)


def _charset(p: Parser) -> str:
    if p.accept("CHARACTER", "SET") or p.accept("CHARSET"):
        return p.charset_name().upper()
    if p.next.upper in ("BINARY", "ASCII", "UNICODE", "BYTE"):
        raise Unsupported(p.next.value)
    return ""


def _options(p: Parser) -> str:
    text = ""
    while True:
        option = _option(p)
        if not option:
            return text
        text += " " + option


def _option(p: Parser) -> str:
    """The next option of a column; empty when there is none."""
    if p.accept("NOT", "NULL"):
        return "NOT NULL"
    if p.accept("NULL"):
        return "NULL"
    if p.accept("DEFAULT"):
        return "DEFAULT " + default(p)
    if p.accept("AUTO_INCREMENT"):
        return "AUTO_INCREMENT"
    if p.accept("PRIMARY", "KEY") or p.accept("KEY"):
        return "PRIMARY KEY" + _clustered(p)
    if p.accept("UNIQUE"):
        p.accept("KEY")
        return "UNIQUE KEY"
    if p.accept("COMMENT"):
        return "COMMENT " + p.string()
    if p.accept("COLLATE"):
        return "COLLATE " + p.charset_name().lower()
    if p.accept("ON", "UPDATE"):
        return "ON UPDATE " + p.now()
    if p.accept("GENERATED", "ALWAYS", "AS") or p.accept("AS"):
        p.expect("(")
        expression = p.expression()
        p.expect(")")
        return f"GENERATED ALWAYS AS({expression}) {p.one_of(('VIRTUAL', 'STORED')) or 'VIRTUAL'}"
    if p.accept("AUTO_RANDOM"):
        return f"/*T![auto_rand] AUTO_RANDOM{_auto_random(p)} */"
    return ""


def _auto_random(p: Parser) -> str:
    return p.bracketed(p.number, ", ") if p.next.upper == "(" else ""


def default(p: Parser) -> str:
    """A default value."""
    if p.accept("NEXT", "VALUE", "FOR"):
        return f"(NEXTVAL({p.table()}))"
    if p.accept("NEXTVAL", "("):
        name = p.table()
        p.expect(")")
        return f"(NEXTVAL({name}))"
    if p.accept("("):
        return _in_brackets(p)
    token = p.next
    if token.kind is TokenKind.WORD and token.upper in NOW:
        return p.now()
    if (
        token.kind in (TokenKind.STRING, TokenKind.NUMBER, TokenKind.BITS)
        or token.upper in ("NULL", "TRUE", "FALSE", "-", "+")
        or token.value.startswith("_")
    ):
        return p.literal()
    raise Unsupported(token.value)


def _in_brackets(p: Parser) -> str:
    """A function as a default value; a sequence has brackets already."""
    if p.next.upper == "NEXTVAL":
        text = default(p)
    elif p.next.kind is TokenKind.WORD and p.ahead(1).upper == "(" and p.next.upper not in NOW | SPECIAL:
        text = f"({p.call()})"
    else:
        raise Unsupported(p.next.value)
    p.expect(")")
    return text


def _clustered(p: Parser) -> str:
    word = p.one_of(_CLUSTERED)
    return f" /*T![clustered_index] {word} */" if word else ""


def key(p: Parser) -> str:
    """An index or a foreign key of a table; empty when the next part is none."""
    symbol = ""
    if p.accept("CONSTRAINT"):
        symbol = "" if p.next.upper in ("PRIMARY", "UNIQUE", "FOREIGN") else p.name()
    if p.accept("PRIMARY", "KEY"):
        return "PRIMARY KEY" + _parts_and_options(p)
    if p.accept("UNIQUE"):
        _ = p.accept("KEY") or p.accept("INDEX")
        return _named("UNIQUE", _index_name(p) or symbol) + _parts_and_options(p)
    if p.accept("FOREIGN", "KEY"):
        return _foreign(p, symbol)
    if symbol:
        raise Unsupported("CONSTRAINT")
    if p.accept("INDEX") or p.accept("KEY"):
        return _named("INDEX", _index_name(p)) + _parts_and_options(p)
    return ""


def _named(what: str, name: str) -> str:
    return f"{what} {name}" if name else what


def _index_name(p: Parser) -> str:
    if p.next.upper in ("(", "IF", "USING"):
        if p.next.upper != "(":
            raise Unsupported(p.next.value)
        return ""
    return p.name()


def _parts_and_options(p: Parser) -> str:
    if p.next.upper != "(":
        raise Unsupported(p.next.value)
    return parts(p) + index_options(p)


def parts(p: Parser) -> str:
    """The columns and expressions of an index."""
    return p.bracketed(lambda: _part(p), ", ")


def _part(p: Parser) -> str:
    if p.accept("("):
        text = f"({p.expression()})"
        p.expect(")")
    else:
        text = p.name() + _size(p)
    p.accept("ASC")
    return text + " DESC" * p.accept("DESC")


def index_options(p: Parser) -> str:
    """The options of an index, in the order in which TiDB writes them."""
    options: dict[str, str] = {}
    while True:
        if word := p.one_of(_CLUSTERED):
            options["clustered"] = f"/*T![clustered_index] {word} */"
        elif p.accept("COMMENT"):
            options["comment"] = "COMMENT " + p.string()
        elif word := p.one_of(("VISIBLE", "INVISIBLE")):
            options["visible"] = word
        elif p.accept("USING"):
            options["type"] = "USING " + p.raw_name().upper()
        else:
            break
    return "".join(" " + options[name] for name in ("clustered", "type", "comment", "visible") if name in options)


def _foreign(p: Parser, symbol: str) -> str:
    name = _index_name(p) or symbol
    columns = parts(p)
    p.expect("REFERENCES")
    text = f"CONSTRAINT {name + ' ' if name else ''}FOREIGN KEY {columns} REFERENCES {p.table()}{parts(p)}"
    acts: dict[str, str] = {}
    while p.accept("ON"):
        when = p.one_of(("DELETE", "UPDATE"))
        acts[when] = _action(p)
    if p.next.upper == "MATCH" or "" in acts:
        raise Unsupported("a foreign key")
    return text + "".join(f" ON {when} {acts[when]}" for when in ("DELETE", "UPDATE") if when in acts)


def _action(p: Parser) -> str:
    for words in (("CASCADE",), ("RESTRICT",), ("SET", "NULL"), ("NO", "ACTION"), ("SET", "DEFAULT")):
        if p.accept(*words):
            return " ".join(words)
    raise Unsupported(p.next.value)
