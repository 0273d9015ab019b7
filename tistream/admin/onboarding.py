"""What is left to do until a registered tenant is active, step by step: for the command line and for the console. Pure.

The facts are those of `GET /v1/clusters/{c}/tenants/{t}`: whoever may look at the tenant can tell.
"""

from __future__ import annotations

from typing import Any


def checklist(found: dict[str, Any], *, has_key: bool, valid_s: int | None = None) -> list[tuple[str, bool, str]]:
    """(step, whether it is done, what more there is to say) of a tenant as the API shows it, in order. `valid_s`: for
    how long session credentials of its pushers count; None = there are none."""
    tasks, stores = found["tasks"], found["stores"]
    active = found["state"] == "ACTIVE"
    return [
        ("registered", True, f": tenant {found['cluster_id']}/{found['tenant_id']}"),
        *([("key for its pushers made", True, "")] if has_key else []),
        *([("session credentials are issued", True, f": {valid_s // 60} minutes")] if valid_s else []),
        ("a pusher has begun", bool(stores) or active, f": {len(stores)} stores" if stores else ""),
        ("schema snapshot read", active, f": the log is complete above {found['start_ts']}"),
        ("tasks made", bool(tasks), f": {len(tasks)}"),
        ("active", active, ""),
    ]
