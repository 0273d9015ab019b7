"""`tistream tso`: converts timestamps to wall time and back."""

from __future__ import annotations

from typing import Annotated

import typer

from tistream import ts as tso
from tistream.cli.output import OutputForm, OutputOption, show_data
from tistream.errors import InvalidInput


def show(
    value: Annotated[str, typer.Argument(help="A TSO, or an RFC 3339 time.")], output: OutputOption = OutputForm.TABLE
) -> None:
    """Show a TSO as wall time, or a time as TSO."""
    ts = moment(value)
    if output is not OutputForm.TABLE:
        show_data({"ts": str(ts), "time": tso.to_text(ts), "logical": tso.logical(ts)}, output)
        return
    print(f"{ts} · {tso.to_text(ts)} · physical {tso.physical_ms(ts)} ms · logical {tso.logical(ts)}")


def moment(value: str) -> int:
    """A TSO, or the TSO of an RFC 3339 time. InvalidInput otherwise."""
    if value.isdecimal():
        ts = int(value)
        if ts >= 1 << 63:
            raise InvalidInput(f"{value} is not a TSO: it has more than 63 bits.")
        return ts
    from datetime import UTC, datetime

    try:
        when = datetime.fromisoformat(value)
    except ValueError as e:
        raise InvalidInput(f"'{value}' is neither a TSO nor an RFC 3339 time.") from e
    physical_ms = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    if physical_ms < 0:
        raise InvalidInput(f"There are no timestamps before 1970: '{value}'.")
    return tso.compose(physical_ms)
