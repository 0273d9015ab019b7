"""What the protocols call a DDL, by TiDB's action number."""

from __future__ import annotations

_RENAME_TABLE, _RENAME_TABLES, _CREATE_TABLE, _CREATE_TABLES, _EXCHANGE = 14, 47, 3, 60, 42
_SINGLE = {_RENAME_TABLES: _RENAME_TABLE, _CREATE_TABLES: _CREATE_TABLE}
_CANAL = {
    "CREATE": (3,),
    "RENAME": (14,),
    "CINDEX": (7, 9, 32),
    "DINDEX": (8, 10, 33),
    "ERASE": (4,),
    "TRUNCATE": (11,),
    "ALTER": (5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 41, 61, 64, 71, 72),
}
_DEBEZIUM = {
    "CREATE": (1, 3, 21),
    "ALTER": (5, 6, 7, 12, 13, 14, 15, 17, 18, 19, 20, 22, 23, 26, 32, 33, 41, 42, 61, 64, 71, 72),
    "DROP": (2, 4, 8, 11, 24),
}
_CANAL_WORDS = {action: word for word, actions in _CANAL.items() for action in actions}
_DEBEZIUM_WORDS = {action: word for word, actions in _DEBEZIUM.items() for action in actions}


def single_action(action: int) -> int:
    """A job over several tables is announced table by table, as the action on one table."""
    return _SINGLE.get(action, action)


def canal_word(action: int) -> str:
    """Of canal-json: QUERY for all that has no word of its own."""
    return _CANAL_WORDS.get(single_action(action), "QUERY")


def simple_word(action: int) -> str:
    """Of the simple protocol: as canal-json, but EXCHANGE PARTITION is an ALTER."""
    return "ALTER" if action == _EXCHANGE else canal_word(action)


def debezium_word(action: int) -> str | None:
    """CREATE, ALTER or DROP; None for a DDL that Debezium has no message for."""
    return _DEBEZIUM_WORDS.get(single_action(action))
