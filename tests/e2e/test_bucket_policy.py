"""The policies of docs/runbooks/bucket-policy.md: a process of each role does its work with its own, over a bucket that
enforces them, and none may do what it has no business with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from simulator.chaos.servers.processes import TiStreamProcess, owner_key
from simulator.chaos.servers.s3server import REGION
from simulator.chaos.servers.services import Services
from tests.kit.s3_doubles import BUCKET, FOLDER, GuardedS3, guarded_s3
from tests.kit.waiting import eventually
from tistream.client import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[2] / "docs" / "runbooks" / "bucket-policy.md"
POLICIES = dict(re.findall(r"^### `(\w+)`\n.*?```json\n(.*?)```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
ROLES = {"meta-1": "meta", "api-1": "serve", "dispatcher-1": "dispatch", "sorter-1": "sort"}
ROLES |= {"maintain-1": "maintain", "replicate-1": "replicate"}
Credentials = Mapping[str, str]


def statements(role: str, pushers: str = "") -> list[dict[str, Any]]:
    text = POLICIES[role].replace("BUCKET/PREFIX", f"{BUCKET}/{FOLDER}").replace("BUCKET", BUCKET)
    policy: dict[str, Any] = json.loads(text.replace("ROLE_OF_PUSHERS", pushers))
    return list(policy["Statement"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedS3]:
    with guarded_s3(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(scope="module")
def pushers(server: GuardedS3) -> str:
    return server.make_role("push", statements("push"))


@pytest.fixture(scope="module")
def credentials(server: GuardedS3, pushers: str) -> dict[str, Credentials]:
    """Of each role, as a machine has them."""
    made = dict[str, Credentials]()
    for role in POLICIES:
        arn = pushers if role == "push" else server.make_role(role, statements(role, pushers))
        taken = server.client("sts").assume_role(RoleArn=arn, RoleSessionName=role)["Credentials"]
        made[role] = {
            "AWS_ACCESS_KEY_ID": taken["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": taken["SecretAccessKey"],
            "AWS_SESSION_TOKEN": taken["SessionToken"],
        }
    return made


def test_every_role_has_a_policy() -> None:
    assert set(POLICIES) == {*ROLES.values(), "push"}


def quick(server: GuardedS3, pushers: str, catalog: str) -> dict[str, str]:
    """Settings of all services: everything that is to be seen here happens within seconds."""
    return {
        "TISTREAM_CATALOG_URL": catalog,
        "TISTREAM_OBJECT_STORE_URL": server.url,
        "TISTREAM_SERVER_AUTH": "keys",
        "TISTREAM_PUSH_ROLE_ARN": pushers,
        "TISTREAM_PUSH_STS_ENDPOINT": server.endpoint,
        **{f"TISTREAM_MAINTENANCE_{name}": "1" for name in ("INTERVAL_S", "PAUSE_S", "LAG_S")},
        "TISTREAM_MAINTENANCE_MERGE_FILES_MIN": "2",
        "TISTREAM_MAINTENANCE_SAVED_PER_MB_MIN": "0",
        "TISTREAM_META_COLLECT_INTERVAL_S": "1",
        "TISTREAM_META_COLLECT_GRACE_S": "1",
        "TISTREAM_EXPORTS_INTERVAL_S": "1",
    }


def test_each_role_does_its_work_with_its_own_policy(
    server: GuardedS3, pushers: str, credentials: dict[str, Credentials], recording: Path, tmp_path: Path
) -> None:
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    settings = quick(server, pushers, catalog)
    services = Services(tmp_path, lambda name: settings | dict(credentials.get(ROLES.get(name, ""), {})))
    try:
        services.start(*ROLES)
        services.wait_until_ready()
        url, owner = services.url_of("api-1"), owner_key("--catalog", catalog)
        with connect(url, key=owner) as client:
            key = client.tenant(1, 1).register()["push"]["key"]
            of = ("-c", "1", "-t", "1", "--url", url, "--key", key)
            for more in (["--check"], ["--capture", str(recording), "--speed", "max"]):
                with TiStreamProcess("push", *of, *more, log=tmp_path / "push.log") as pusher:
                    assert pusher.wait(240) == 0, pusher.output()
            pushed = set(keys(server, "data_change_buffer/"))
            copy = f"file://{tmp_path}/copy?protocol=canal-json"
            feed = {"changefeed_id": "copy", "start_ts": "earliest", "sink_uri": copy}
            client.post("/v1/clusters/1/tenants/1/changefeeds", feed)
            written = ("committed/", "compacted/", "schemas/", "seeds/", "snapshots/")
            eventually(lambda: all(keys(server, folder) for folder in written), services.logs)
            eventually(lambda: any((tmp_path / "copy").rglob("*.json")), services.logs)
            eventually(lambda: bool(pushed - set(keys(server, "data_change_buffer/"))), services.logs)
            eventually(lambda: "objects collected" in services.processes["meta-1"].output(), services.logs)
            assert client.get("/healthz")["problems"] == []
        refused = re.compile(r"TS-1039|AccessDenied|denied access", re.IGNORECASE)
        assert not [name for name, each in services.processes.items() if refused.search(each.output())]
    finally:
        services.kill()


def keys(server: GuardedS3, folder: str) -> list[str]:
    pages = server.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{FOLDER}/{folder}")
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


#: role -> what S3 must refuse it: an action and the folder of the object
FORBIDDEN = {
    "meta": ["put committed", "put data_change_buffer"],
    "serve": ["put committed", "delete committed", "delete data_change_buffer/cluster-1"],
    "dispatch": ["get committed", "put data_change_buffer", "delete committed"],
    "sort": ["get data_change_buffer", "delete committed", "put seeds"],
    "maintain": ["delete compacted", "put data_change_buffer"],
    "replicate": ["delete committed", "put committed"],
    "push": ["get data_change_buffer", "delete data_change_buffer", "put committed"],
}


@pytest.mark.parametrize("role", FORBIDDEN)
def test_a_role_may_do_no_more(role: str, server: GuardedS3, credentials: dict[str, Credentials]) -> None:
    from boto3.session import Session

    own = {name.lower(): value for name, value in credentials[role].items()}
    client = Session().client("s3", endpoint_url=server.endpoint, region_name=REGION, **own)
    for line in FORBIDDEN[role]:
        action, folder = line.split()
        key = f"{FOLDER}/{folder}/x"
        server.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"there")
        with pytest.raises(ClientError) as refusal:
            getattr(client, f"{action}_object")(Bucket=BUCKET, Key=key)
        assert refusal.value.response["Error"]["Code"] == "AccessDenied", line
