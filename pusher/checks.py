"""Checks what a pusher needs apart from its source: service, key, credentials, bucket.

    control plane -> key -> tenant -> credentials -> put -> seen -> create if absent -> a neighbour's folder

A probe object is put under a prefix that pushers may write and no service reads
(`tistream.objectstore.layout.ProbeKey`); the service removes it, because pushers cannot delete. A second one goes to
another tenant's folder and must be refused. No incarnation is issued, so a running pusher is not disturbed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from pusher.control import CheckControl, PushBundle
from pusher.logbackup.checkpoint import read_checkpoint
from pusher.logbackup.core.metadata import META_PREFIX
from tistream.diagnostics.findings import Checklist, Finding, fail, ok, warn
from tistream.errors import NotFound, ObjectConflict, StoreRefused
from tistream.objectstore.factory import open_store, s3_place
from tistream.objectstore.layout import ProbeKey, foreign_probe, probe_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import to_text

_CONTENT = b"put by tistream push --check, which has it removed: it may be deleted"
_OTHER = b"other bytes under the same key"


def check_push(control: CheckControl, open_bucket: Callable[[str], ObjectStore], name: str) -> list[Finding]:
    """Run all checks. They stop after a failure of the control plane, the credentials, the first put or its visibility.
    `name`: a fresh name for the probe, lower-case letters and digits."""
    checks, checklist = _Push(control, open_bucket, name), Checklist()
    if checklist.check("control plane", checks.control_plane):
        checklist.check("key", checks.key)
        checklist.check("tenant", checks.tenant)
        if (
            checklist.check("credentials", checks.credentials)
            and checklist.check("put", checks.put)
            and checklist.check("the service sees it", checks.seen)
        ):
            checklist.check("create if absent", checks.create_if_absent)
            checklist.check("a neighbour's folder", checks.neighbour)
            checklist.check("removed", checks.removed)
    return checklist.findings


def check_log_backup(url: str) -> Finding:
    """The directory of a log backup can be read, and has a watermark."""
    store = open_store(url, foreign=True)
    if next(iter(store.list(META_PREFIX)), None) is None:
        return fail(f"{url} can be listed, but no log backup has written below {META_PREFIX}")
    checkpoint = read_checkpoint(store)
    if checkpoint is None:
        return warn(f"{url} has no global checkpoint yet, so it has no watermark")
    return ok(f"{url}: watermark {checkpoint.ts} ({to_text(checkpoint.ts)})", checkpoint=str(checkpoint.ts))


def check_spill(folder: Path, bytes_max: int) -> Finding:
    """Files can be written below the folder of a cluster's spill, and `bytes_max` bytes have room. A folder that is
    not there yet is created and removed again."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="check-") as probe:
            probe.write(_CONTENT)
            probe.flush()
        free = shutil.disk_usage(folder).free
        if is_new:
            folder.rmdir()
    except OSError as e:
        return fail(f"{folder} cannot be used: {e.strerror or e}", folder=str(folder))
    facts = {"folder": str(folder), "free_bytes": free, "bytes_max": bytes_max}
    if free < bytes_max:
        words = f"{folder} has {free >> 20:,} MiB left, and one store may spill {bytes_max >> 20:,} MiB (--spill-mib)"
        return warn(words, **facts)
    return ok(f"files can be written below {folder}, and {free >> 20:,} MiB are left", **facts)


class _Push:
    """The checks, in order: each needs those before it."""

    def __init__(self, control: CheckControl, open_bucket: Callable[[str], ObjectStore], name: str) -> None:
        self._control, self._open, self._name = control, open_bucket, name
        self._tenant = control.tenant
        self._probe = str(ProbeKey(tenant=control.tenant, name=name))
        self._bundle: PushBundle | None = None
        self._bucket: ObjectStore | None = None

    def control_plane(self) -> Finding:
        self._bundle = self._control.push_bundle()
        return ok(f"reachable; tenant {self._tenant} exists", state=self._bundle.state)

    def key(self) -> Finding:
        who = self._control.whoami()
        if not who["key_id"]:
            return ok("the service requires no key")
        facts = {name: who[name] for name in ("role", "key_id")}
        if who["role"] != "pusher":
            words = f"{who['name']} has the role {who['role']}, which may do more than a pusher needs"
            return warn(f"{words}: create a pusher key with tistream tenant rotate-key", **facts)
        return ok(f"{who['name']}, role pusher, for tenant {self._tenant} only", **facts)

    def tenant(self) -> Finding:
        match state := self._known_bundle().state:
            case "ACTIVE":
                return ok("ACTIVE", state=state)
            case "AWAITING_SNAPSHOT":
                return ok("AWAITING_SNAPSHOT: it begins with the first push", state=state)
            case "PAUSED":
                return warn("PAUSED: pushed files wait in the bucket until tistream tenant resume", state=state)
        return fail(f"{state}: nothing can be pushed", state=state)

    def credentials(self) -> Finding:
        url = self._known_bundle().object_store
        if self._known_bundle().session:
            issued = self._control.push_credentials()
            words = f"issued by the service, valid for {issued.valid_s / 60:g} minutes and renewed before they expire"
            if issued.kms_key_arn:
                words += f"; puts are encrypted with {issued.kms_key_arn}"
            return ok(words, by="service", valid_s=issued.valid_s, kms_key_arn=issued.kms_key_arn)
        if s3_place(url) is None:
            next(iter(open_store(url, foreign=True).list(probe_prefix(self._tenant))), None)
            return ok(f"{url} is not an S3 bucket and needs none", by="pusher")
        return ok("the pusher's own (AWS_*, or the machine's role)", by="pusher")

    def put(self) -> Finding:
        url = self._known_bundle().object_store
        self._bucket = self._open(url)
        self._bucket.put(self._probe, _CONTENT)
        return ok(f"{url}: a put below {probe_prefix(self._tenant)} is accepted", object_store=url)

    def seen(self) -> Finding:
        there = self._control.compare(self._probe, len(_CONTENT), hashlib.sha256(_CONTENT).hexdigest())
        if there != "same":
            words = f"{self._probe} was put (and stays), but the service does not see it"
            return fail(f"{words}: it reads another bucket or folder", there=there)
        return ok("the service finds the object that was put", there=there)

    def create_if_absent(self) -> Finding:
        try:
            self._put(self._probe, _OTHER)
        except ObjectConflict:
            return ok("a second put of a key is refused")
        words = "a second put of a key was accepted: this store cannot be used; see tistream doctor --object-store"
        return fail(words)

    def neighbour(self) -> Finding:
        key = str(foreign_probe(self._tenant, self._name))
        if s3_place(self._known_bundle().object_store) is None:
            return ok("not tried: a folder does not isolate pushers")
        try:
            self._put(key, _CONTENT)
        except StoreRefused:
            return ok(f"a put to {key} is refused", refused=True)
        words = f"a put to {key} was accepted: these credentials may write to other tenants' folders"
        if self._known_bundle().session:
            return fail(f"{words}; the server does not enforce session policies", refused=False)
        return warn(f"{words}; set push.role_arn so that the service issues narrower ones", refused=False)

    def removed(self) -> Finding:
        try:
            self._control.drop_probe(self._name)
        except NotFound:
            return warn(f"this service cannot remove {self._probe}; it is small and harmless")
        return ok("nothing was left behind")

    def _put(self, key: str, data: bytes) -> None:
        assert self._bucket is not None
        self._bucket.put(key, data)

    def _known_bundle(self) -> PushBundle:
        assert self._bundle is not None
        return self._bundle
