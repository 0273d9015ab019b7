"""Looks at all that a tenant's pusher needs but its source, before it is started: service, key, credentials, bucket.

    control plane -> key -> tenant -> credentials -> put -> seen -> create if absent -> a neighbour's folder

A probe is put where pushers write and nobody reads (`tistream.objectstore.layout.ProbeKey`); the service removes it,
for pushers cannot. A second one is put into a neighbour's folder and must be refused. No life of a pusher is begun,
so that one which runs is not disturbed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from pusher.control import CheckControl, PushBundle
from tistream.diagnostics.findings import Finding, Look, Verdict, check
from tistream.errors import NotFound, ObjectConflict, StoreRefused
from tistream.objectstore.factory import open_store, s3_place
from tistream.objectstore.layout import ProbeKey, foreign_probe, probe_prefix
from tistream.objectstore.protocol import ObjectStore

_WORDS = b"put by tistream push --check, which has it removed: it may be deleted"
_OTHER = b"other bytes under the same key"


def examine_push(control: CheckControl, open_bucket: Callable[[str], ObjectStore], name: str) -> list[Finding]:
    """All checks. After the control plane, the credentials, the first put or its being seen have failed nothing more is
    tried. `name` is a new one: small letters and digits."""
    looks = _Push(control, open_bucket, name)
    found = [check("control plane", looks.control_plane)]
    if found[0].verdict is Verdict.FAIL:
        return found
    found += [check("key", looks.key), check("tenant", looks.tenant), check("credentials", looks.credentials)]
    if found[-1].verdict is Verdict.FAIL:
        return found
    put = check("put", looks.put)
    found.append(put)
    if put.verdict is Verdict.FAIL:
        return found
    seen = check("the service sees it", looks.seen)
    found.append(seen)
    if seen.verdict is Verdict.FAIL:
        return found
    found.append(check("create if absent", looks.create_if_absent))
    found.append(check("a neighbour's folder", looks.neighbour))
    found.append(check("removed", looks.removed))
    return found


class _Push:
    """The checks, each of which needs those before it."""

    def __init__(self, control: CheckControl, open_bucket: Callable[[str], ObjectStore], name: str) -> None:
        self._control, self._open, self._name = control, open_bucket, name
        self._tenant = control.tenant
        self._probe = str(ProbeKey(tenant=control.tenant, name=name))
        self._bundle: PushBundle | None = None
        self._bucket: ObjectStore | None = None

    def control_plane(self) -> Look:
        self._bundle = self._control.push_bundle()
        return Verdict.OK, f"it answers, and knows tenant {self._tenant}", {"state": self._bundle.state}

    def key(self) -> Look:
        who = self._control.whoami()
        if who is None:
            return Verdict.OK, f"it may push for tenant {self._tenant}", {}
        if not who["key_id"]:
            return Verdict.OK, "no keys are asked for", {}
        facts: dict[str, object] = {"role": who["role"], "key_id": who["key_id"]}
        if who["role"] != "pusher":
            words = f"{who['name']} is of role {who['role']}, and may do more than a pusher should"
            return Verdict.WARN, f"{words}: tistream tenant rotate-key makes one for pushers", facts
        return Verdict.OK, f"{who['name']}, of role pusher, for tenant {self._tenant} alone", facts

    def tenant(self) -> Look:
        state = self._told().state
        facts: dict[str, object] = {"state": state}
        match state:
            case "ACTIVE":
                return Verdict.OK, "ACTIVE", facts
            case "AWAITING_SNAPSHOT":
                return Verdict.OK, "AWAITING_SNAPSHOT: it begins with the first push", facts
            case "PAUSED":
                return Verdict.WARN, "PAUSED: what is pushed waits in the bucket until tistream tenant resume", facts
        return Verdict.FAIL, f"{state}: nothing can be pushed", facts

    def credentials(self) -> Look:
        where = self._told().object_store
        if self._told().session:
            issued = self._control.push_credentials()
            words = f"the service issues them; they count for {issued.valid_s / 60:g} minutes and are renewed before"
            if issued.kms_key_arn:
                words += f"; each put names the key {issued.kms_key_arn}"
            return Verdict.OK, words, {"by": "service", "valid_s": issued.valid_s, "kms_key_arn": issued.kms_key_arn}
        if s3_place(where) is None:
            next(iter(open_store(where, foreign=True).list(probe_prefix(self._tenant))), None)
            return Verdict.OK, f"{where} is no bucket of S3 and asks for none", {"by": "pusher"}
        return Verdict.OK, "the pusher's own (AWS_*, or the machine's role)", {"by": "pusher"}

    def put(self) -> Look:
        where = self._told().object_store
        self._bucket = self._open(where)
        self._bucket.put(self._probe, _WORDS)
        return Verdict.OK, f"{where}: a put below {probe_prefix(self._tenant)} is accepted", {"object_store": where}

    def seen(self) -> Look:
        there = self._control.compare(self._probe, len(_WORDS), hashlib.sha256(_WORDS).hexdigest())
        if there != "same":
            words = f"{self._probe} was put (and stays), and the service does not see it"
            return Verdict.FAIL, f"{words}: it looks into another bucket or folder", {"there": there}
        return Verdict.OK, "what was put is what the service finds", {"there": there}

    def create_if_absent(self) -> Look:
        try:
            self._put(self._probe, _OTHER)
        except ObjectConflict:
            return Verdict.OK, "a second put of a key is refused", {}
        words = "a second put of a key was let through: this store cannot be used; tistream doctor --object-store"
        return Verdict.FAIL, words, {}

    def neighbour(self) -> Look:
        key = str(foreign_probe(self._tenant, self._name))
        if s3_place(self._told().object_store) is None:
            return Verdict.OK, "not tried: in a folder nothing keeps pushers apart", {}
        try:
            self._put(key, _WORDS)
        except StoreRefused:
            return Verdict.OK, f"a put to {key} is refused", {"refused": True}
        words = f"a put to {key} was accepted: these credentials may write to other tenants' folders"
        if self._told().session:
            return Verdict.FAIL, f"{words}; the server does not enforce session policies", {"refused": False}
        return (
            Verdict.WARN,
            f"{words}; the setting push.role_arn makes the service issue narrower ones",
            {"refused": False},
        )

    def removed(self) -> Look:
        try:
            self._control.drop_probe(self._name)
        except NotFound:
            return Verdict.WARN, f"this service cannot remove {self._probe}; it is small, and does no harm", {}
        return Verdict.OK, "nothing was left behind", {}

    def _put(self, key: str, data: bytes) -> None:
        assert self._bucket is not None
        self._bucket.put(key, data)

    def _told(self) -> PushBundle:
        assert self._bundle is not None
        return self._bundle
