"""TiDB's DDL action types by number, and how TiStream treats each.

    EVENTS    change the schema and are delivered as an event (the same set that TiCDC handles)
    SILENT    change which tables exist, without an event: sequences, a recovered database
    IGNORED   do not affect decoding or delivery
    others    are unknown or newer: the table definition that the job carries is adopted, without an event

The names are TiDB's own and stable; users see them as the kind of an event.
"""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """The action types that are treated specially."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    RENAME_TABLE = 14
    CREATE_VIEW = 21
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    CREATE_SEQUENCE = 34
    DROP_SEQUENCE = 36
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63


EVENTS = frozenset({*range(1, 27), 32, 33, 41, 42, 47, 60, 61, 64, 65, 67, 71, 72})
SILENT = frozenset({34, 35, 36, 63})
IGNORED = frozenset({*range(27, 32), 39, 40, 43, 44, 45, *range(49, 58), 59, 62, 68, 69, 70})

#: give ids to tables and partitions that nothing had before
ALLOCATING = frozenset({3, 11, 19, 21, 23, 34, 60, 64, 71, 72})

#: begin with other physical ids before they are done (see `schemas.switch`)
EARLY = frozenset({20, 23, 64, 71, 72})

_NAMES = {
    1: "create schema",
    2: "drop schema",
    3: "create table",
    4: "drop table",
    5: "add column",
    6: "drop column",
    7: "add index",
    8: "drop index",
    9: "add foreign key",
    10: "drop foreign key",
    11: "truncate table",
    12: "modify column",
    13: "rebase auto_increment ID",
    14: "rename table",
    15: "set default value",
    16: "shard row ID",
    17: "modify table comment",
    18: "rename index",
    19: "add partition",
    20: "drop partition",
    21: "create view",
    22: "modify table charset and collate",
    23: "truncate partition",
    24: "drop view",
    25: "recover table",
    26: "modify schema charset and collate",
    27: "lock table",
    28: "unlock table",
    29: "repair table",
    30: "set tiflash replica",
    31: "update tiflash replica status",
    32: "add primary key",
    33: "drop primary key",
    34: "create sequence",
    35: "alter sequence",
    36: "drop sequence",
    37: "add multi-columns",
    38: "drop multi-columns",
    39: "modify auto id cache",
    40: "rebase auto_random ID",
    41: "alter index visibility",
    42: "exchange partition",
    43: "add check constraint",
    44: "drop check constraint",
    45: "alter check constraint",
    47: "rename tables",
    49: "alter table attributes",
    50: "alter table partition attributes",
    51: "create placement policy",
    52: "alter placement policy",
    53: "drop placement policy",
    54: "modify schema default placement",
    55: "alter table placement",
    56: "alter table partition placement",
    57: "alter table cache",
    58: "alter table statistics options",
    59: "alter table nocache",
    60: "create tables",
    61: "alter table multi-schema change",
    62: "flashback cluster",
    63: "flashback schema",
    64: "alter table reorganize partition",
    65: "alter table ttl",
    67: "alter table no_ttl",
    68: "create resource group",
    69: "alter resource group",
    70: "drop resource group",
    71: "alter table partition by",
    72: "alter table remove partitioning",
}


def action_name(action: int) -> str:
    """TiDB's name of an action type; `action N` for an unknown one."""
    return _NAMES.get(action, f"action {action}")
