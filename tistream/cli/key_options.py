"""Options of `tistream pull --keys` and `tistream snapshot --keys`: the keys and values of a raw or txn tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from tistream.errors import InvalidInput

Keys = Annotated[
    bool, typer.Option("--keys", help="Keys and values of a raw or txn tenant; any option of keys means it.")
]
StartKey = Annotated[str | None, typer.Option(help="Only keys from this one on, in the key format.")]
EndKey = Annotated[str | None, typer.Option(help="Only keys below this one, in the key format.")]
Prefix = Annotated[str | None, typer.Option(help="Only keys that begin with this, in the key format.")]
FormatOfKeys = Annotated[
    str | None, typer.Option("--key-format", help="escaped (default; k1\\x00), hex, base64 or utf8.")
]
KeyPattern = Annotated[str | None, typer.Option(help="Only keys with a match of this regular expression over bytes.")]
ValuePattern = Annotated[str | None, typer.Option(help="Only deletes, and values with a match of this expression.")]


def key_options(
    *, keys: bool, address: bool, others: Mapping[str, object], **given: str | None
) -> dict[str, str] | None:
    """The part of the query that is about keys; None when tables are pulled. `address`: a whole URL says so itself.
    `others`: what only tables have."""
    chosen = {name: text for name, text in given.items() if text is not None}
    if not (keys or chosen):
        return None
    if refused := [name for name, value in others.items() if value]:
        raise InvalidInput(f"Keys have no {' and no '.join(refused)}: leave that out with --keys.")
    return chosen if address else {"key_format": "escaped", **chosen}
