"""Findings from the answers of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tistream.client.checks import (
    check_key,
    check_owner,
    check_parts,
    check_problems,
    check_tenants,
    check_workers,
    offset_of,
)
from tistream.diagnostics.findings import Checklist, Severity, clock_skew
from tistream.errors import StoreRefused

OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL
AT = 1_795_000_000_000  # a whole second
DATE = {"date": "Wed, 18 Nov 2026 11:06:40 GMT"}  # the same


@pytest.mark.parametrize(
    ("before", "after", "offset"),
    [
        (AT, AT, 0),
        (AT + 999, AT + 1_100, 0),  # the header has whole seconds
        (AT + 1_990, AT + 1_999, 0),  # and is made anew once a second
        (AT - 5_000, AT + 5_000, 0),
        (AT + 61_000, AT + 61_500, -58_500),
        (AT - 3_000, AT - 2_000, 2_000),
    ],
)
def test_clock_offset_from_the_date_header(before: int, after: int, offset: int) -> None:
    assert offset_of(DATE, before, after) == offset


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_no_offset_without_a_valid_date_header(headers: dict[str, str]) -> None:
    assert offset_of(headers, AT, AT) is None


@pytest.mark.parametrize(("ms", "verdict"), [(999, OK), (-999, OK), (1_000, WARN), (-59_999, WARN), (-60_000, FAIL)])
def test_verdict_of_a_clock_skew(ms: int, verdict: Severity) -> None:
    finding = clock_skew("its", ms)
    assert finding.verdict is verdict
    assert finding.facts == {"offset_ms": ms}
    assert finding.words == f"its clock is {abs(ms)} ms {'ahead of' if ms > 0 else 'behind'} this machine's"


def test_a_part_that_is_not_ok_fails() -> None:
    checklist = Checklist()
    check_parts(checklist, {"catalog": "ok", "object store": "the bucket is not there"})
    findings = checklist.findings
    assert [(f.name, f.verdict) for f in findings] == [("part: catalog", OK), ("part: object store", FAIL)]
    assert findings[1].words == "the bucket is not there"


def who(role: str, rights: list[str], tenant: int | None = None, key_id: str = "k") -> dict[str, Any]:
    ids = {"cluster_id": None if tenant is None else 1, "tenant_id": tenant}
    return {"key_id": key_id, "name": "ann", "role": role, "rights": rights, **ids}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (who("owner", ["look", "read"]), OK),
        (who("owner", ["look"], key_id=""), OK),
        (who("consumer", ["look", "read"], 7), WARN),
        (who("pusher", ["push"], 7), WARN),
    ],
)
def test_a_key_that_does_not_see_everything_is_a_warning(answer: dict[str, Any], verdict: Severity) -> None:
    assert check_key(answer).verdict is verdict


def test_problems() -> None:
    problem = {"source": "sorter-1", "code": "TS-1063", "message": "it stands", "fatal": False}
    assert check_problems({"problems": []}).verdict is OK
    assert check_problems({"problems": [problem]}).verdict is WARN
    assert check_problems({"problems": [problem, {**problem, "fatal": True}]}).verdict is FAIL


def test_the_owner() -> None:
    alive = {"owner": "meta-1", "epoch": 3, "heartbeat_age_s": 0.9, "alive": True}
    assert check_owner(alive).verdict is OK
    dead = check_owner({**alive, "alive": False, "heartbeat_age_s": 90})
    assert dead.verdict is FAIL
    assert "90 s" in dead.words
    assert check_owner({"owner": None, "epoch": 0, "heartbeat_age_s": None, "alive": False}).verdict is FAIL


def worker(name: str, kind: str, state: str = "up") -> dict[str, Any]:
    return {"worker_id": name, "kind": kind, "state": state, "alive": state == "up"}


@pytest.mark.parametrize(
    ("workers", "verdict", "words"),
    [
        ([worker("d", "dispatcher"), worker("s", "sorter"), worker("old", "sorter", "gone")], OK, "1 sorter"),
        (
            [worker("d", "dispatcher"), worker("s", "sorter"), worker("t", "sorter", "silent")],
            WARN,
            "no longer seen: t",
        ),
        ([worker("d", "dispatcher"), worker("s", "sorter", "silent")], FAIL, "no sorter is up"),
        ([], FAIL, "no dispatcher and no sorter is up (up: none)"),
    ],
)
def test_workers(workers: list[dict[str, Any]], verdict: Severity, words: str) -> None:
    finding = check_workers({"items": workers})
    assert finding.verdict is verdict
    assert words in finding.words


def test_each_tenant_with_its_watermark_gaps() -> None:
    tenants: list[Mapping[str, Any]] = [
        {"cluster_id": 1, "tenant_id": n, "state": "ACTIVE", "lag_s": 1.5, "ended": False} for n in (1, 2, 3)
    ]
    watermark_gaps: list[Mapping[str, Any]] = [
        {"cluster_id": 1, "tenant_id": 2, "cause": "standing", "sentence": "it waits", "next_step": "look at store 3"},
        {"cluster_id": 1, "tenant_id": 3, "cause": "standing", "sentence": "it waits", "next_step": "look"},
        {"cluster_id": 1, "tenant_id": 3, "cause": "stopped", "sentence": "it stopped", "next_step": "retry"},
    ]
    tenants.append({**tenants[0], "tenant_id": 4, "lag_s": 0, "ended": True, "resolved_time": "2026-11-21T08:02:58Z"})
    checklist = Checklist()
    check_tenants(checklist, tenants, watermark_gaps)
    findings = checklist.findings
    assert [f.verdict for f in findings] == [OK, WARN, FAIL, OK]
    assert findings[3].name == "tenant 1/4"
    assert findings[3].words == "ACTIVE, ended, complete up to 2026-11-21T08:02:58Z"
    assert findings[0].words == "ACTIVE, 1.5 s behind"
    assert findings[1].words == "ACTIVE, 1.5 s behind; it waits: look at store 3"
    assert findings[2].words == "ACTIVE, 1.5 s behind; it stopped: retry (and 1 more: tistream gaps)"


@pytest.mark.parametrize(
    ("lag_s", "verdict", "words"),
    [
        (None, OK, "AWAITING_SNAPSHOT"),
        (29.999, OK, "ACTIVE, 30.0 s behind"),
        (30, WARN, "ACTIVE, 30.0 s behind: tistream explain lag -c 1 -t 1 says why"),
        (4 * 86_400, WARN, "ACTIVE, 4 d behind: tistream explain lag -c 1 -t 1 says why"),
    ],
)
def test_a_tenant_that_is_far_behind_is_a_warning(lag_s: float | None, verdict: Severity, words: str) -> None:
    checklist = Checklist()
    state = "AWAITING_SNAPSHOT" if lag_s is None else "ACTIVE"
    check_tenants(checklist, [{"cluster_id": 1, "tenant_id": 1, "state": state, "lag_s": lag_s, "ended": False}], [])
    (finding,) = checklist.findings
    assert (finding.verdict, finding.words) == (verdict, words)


def test_a_check_that_raises_fails_with_the_text_of_the_error() -> None:
    def refused() -> Any:
        raise StoreRefused("AccessDenied", key="k")

    checklist = Checklist()
    assert not checklist.check("put", refused)
    (finding,) = checklist.findings
    assert (finding.name, finding.verdict, finding.facts) == ("put", FAIL, {"code": "TS-1039"})
    assert finding.words.startswith("AccessDenied (key=k); Own credentials")
