"""What to do after an error, in the words of the command line: its options and commands, not parameters and headers.

An error's own hint is in the words of the API, where most of them are the same. HINTS has the others.
"""

from __future__ import annotations

from tistream.errors import NotFound, TiStreamError

#: code -> the hint of the command line
HINTS = {
    "TS-1003": "Give --cursor as a pull printed it, for the same tables, or start again with --since.",
    "TS-1004": "Give a moment up to now, or --since latest; --follow waits for changes.",
    "TS-1005": "--since earliest starts at the beginning of the log; earlier rows must come from a dump of the source.",
    "TS-1007": "Retry when the watermark has passed it, give --timeout SECONDS, or read --as-of latest.",
    "TS-1009": "Pull the table by its new name, with --since at the timestamp of the rename.",
    "TS-1012": (
        "Read --as-of readable_upto_ts or earlier, --as-of readable_from_ts or later if it is given, or without the"
        " column (--columns). Or add a seed of the table, taken after the column change, with tistream seed."
    ),
    "TS-1013": "Read again with --since from_ts: what was read above it lacks the accepted rows.",
    "TS-1014": "Check the current state: tistream workers list and tistream tasks list.",
    "TS-1015": "Look at it again, and repeat the command.",
    "TS-1022": "Start again with --snapshot and without --cursor, and replace what the first snapshot delivered.",
    "TS-1080": "Pass --key or set TISTREAM_KEY; tistream login keeps a key for an address.",
    "TS-1081": "Use a key of a role with this permission: tistream key create. tistream key list shows their roles.",
    "TS-1082": "Repeat the command.",
    "TS-1090": "Wait a little, and ask for less at once.",
}


_NOT_FOUND = "tistream tenant list shows the tenants, and tistream schema show -c C -t T the tables of one."


def hint_of(error: TiStreamError) -> str:
    """The hint for who typed a command; empty without one."""
    if isinstance(error, NotFound) and error.hint.startswith("GET /"):
        return _NOT_FOUND
    return HINTS.get(error.code, error.hint)
