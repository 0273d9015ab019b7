"""Messages of a service that requires keys when it starts: the first owner's key, once per catalog, and a link that
opens the console."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tistream.catalog.database.engine import Catalog

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def first_words(catalog: Catalog, url: str, *, has_console: bool) -> list[str]:
    """Lines below the greeting. The link is printed with the first key and on a terminal, not into every log."""
    from tistream.catalog.tenancy.keys import list_keys
    from tistream.http.auth.core.keys import parse_key
    from tistream.http.auth.core.roles import Role
    from tistream.http.auth.issue import first_owner_key, login_code

    lines = []
    key = first_owner_key(catalog)
    if key is not None:
        lines += [
            f"  owner key  {key}",
            "             shown this once and kept nowhere: `tistream login` remembers it for you",
        ]
    if has_console and (key is not None or sys.stderr.isatty()):
        owners = [row.key_id for row in list_keys(catalog) if row.role == Role.OWNER and row.state == "living"]
        who = parse_key(key).key_id if key is not None else next(iter(owners), None)
        if who is not None:
            lines.append(f"  console    {url}/login#{login_code(catalog, who)}")
            lines.append("             signs you in once, within ten minutes; later: tistream login --console")
    if (urlsplit(url).hostname or "") not in _LOOPBACK:
        lines.append("  note       keys travel as plain text here: put a proxy with TLS in front")
    return lines
