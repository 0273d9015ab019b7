"""The steps until a registered tenant is active, for the command line and the console. Pure.

They are computed from `GET /v1/clusters/{c}/tenants/{t}`.
"""

from __future__ import annotations

from typing import Any


def checklist(details: dict[str, Any], *, has_key: bool, valid_s: int | None = None) -> list[tuple[str, bool, str]]:
    """(step, whether it is done, details) of a tenant as the API shows it, in order. `valid_s`: for how long session
    credentials of its pushers are valid; None = there are none."""
    tasks, stores = details["tasks"], details["stores"]
    begins = ("schema snapshot read", f": the log begins at {details['start_ts']}")
    if details["keyspace"] is not None:
        begins = ("id of the keyspace known", f": {details['keyspace']['id']}")
    active = details["state"] == "ACTIVE"
    return [
        ("registered", True, f": tenant {details['cluster_id']}/{details['tenant_id']}"),
        *([("key for its pushers created", True, "")] if has_key else []),
        *([("session credentials are issued", True, f": {valid_s // 60} minutes")] if valid_s else []),
        ("a pusher has started", bool(stores) or active, f": {len(stores)} stores" if stores else ""),
        (begins[0], active, begins[1]),
        ("tasks created", bool(tasks), f": {len(tasks)}"),
        ("active", active, ""),
    ]
