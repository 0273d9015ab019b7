"""Routes of changefeeds that the service writes: who may let it write where, what is shown of a place, and what is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from tests.kit.auth_site import MINE, Site, auth_site, is_problem
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.lanes import list_lanes
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.errors import InvalidInput
from tistream.http.auth.core.roles import Role

FEEDS = "/v1/clusters/1/tenants/1/changefeeds"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site(tmp_path_factory.mktemp("site")) as made:
        yield made


def feed(name: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {"changefeed_id": name, "sink_uri": f"file://{folder}/{name}?protocol=csv", **more}


@pytest.mark.parametrize("scheme", ["file", "FILE", "File"])
def test_the_service_writes_to_its_own_disk_for_operators_only(site: Site, tmp_path: Path, scheme: str) -> None:
    tenant_admin = site.key(Role.TENANT_ADMIN, MINE)
    folder = {"changefeed_id": "x", "sink_uri": f"{scheme}://{tmp_path}/x?protocol=csv"}
    bucket = {"changefeed_id": "x", "sink_uri": "s3://b/x?protocol=csv", "dead_letter": f"{scheme}://{tmp_path}/dead"}
    for body in (folder, bucket):
        assert is_problem(site.ask("POST", FEEDS, tenant_admin, json=body), 403, "TS-1081")
    site.ask("POST", FEEDS, site.key(Role.OWNER), json=feed("mine", tmp_path)).raise_for_status()
    site.ask("POST", f"{FEEDS}/mine:pause", tenant_admin).raise_for_status()
    for body in ({"sink_uri": folder["sink_uri"]}, {"dead_letter": bucket["dead_letter"]}):
        assert is_problem(site.ask("POST", f"{FEEDS}/mine:update", tenant_admin, json=body), 403, "TS-1081")
    assert not (tmp_path / "dead").exists()
    assert site.ask("DELETE", f"{FEEDS}/mine", tenant_admin).status_code == 204


def test_a_place_of_dead_letters_is_shown_without_secrets_changed_and_removed(site: Site, tmp_path: Path) -> None:
    owner, dead = site.key(Role.OWNER), f"file://{tmp_path}/dead"
    made = site.ask("POST", FEEDS, owner, json=feed("dr", tmp_path, dead_letter=dead))
    assert (made.status_code, made.json()["dead_letter"], made.json()["dead_letters"]) == (201, dead, 0)
    assert site.ask("POST", FEEDS, owner, json=feed("dr", tmp_path, dead_letter=dead)).status_code == 200
    assert site.ask("POST", FEEDS, owner, json=feed("dr", tmp_path)).status_code == 400, "with other settings"
    site.ask("POST", f"{FEEDS}/dr:pause", owner).raise_for_status()

    def update(body: dict[str, Any]) -> Any:
        return site.ask("POST", f"{FEEDS}/dr:update", owner, json=body)

    assert update({"target_ts": "0"}).json()["dead_letter"] == dead, "what is not given stays"
    away = "s3://nowhere/p?access-key=a&secret-access-key=hidden&endpoint=http://127.0.0.1:9"
    refused = update({"dead_letter": away})
    assert refused.json()["code"] == "TS-1105"
    assert "hidden" not in refused.text
    assert is_problem(update({"dead_letter": f"file://{tmp_path}/dr/letters"}), 400, "TS-1001")
    assert is_problem(update({"dead_letter": "tikv://pd:2379"}), 400, "TS-1001")
    assert site.get(f"{FEEDS}/dr", owner).json()["dead_letter"] == dead
    assert update({"dead_letter": ""}).json()["dead_letter"] == ""
    assert "dead_letter" not in orjson.loads(CHANGEFEEDS.get(site.parts.catalog, MINE, "dr").options)
    site.ask("DELETE", f"{FEEDS}/dr", owner)


@pytest.mark.parametrize(
    ("in_uri", "given", "count"), [("", None, 2), ("&worker-count=5", None, 5), ("&worker-count=5", 3, 3)]
)
def test_worker_count_of_a_destination_is_its_number_of_lanes(
    site: Site, tmp_path: Path, in_uri: str, given: int | None, count: int
) -> None:
    body = feed("wide", tmp_path, lanes=given)
    site.ask(
        "POST", FEEDS, site.key(Role.OWNER), json={**body, "sink_uri": body["sink_uri"] + in_uri}
    ).raise_for_status()
    assert len(list_lanes(site.parts.catalog, MINE, "wide")) == count
    site.ask("DELETE", f"{FEEDS}/wide", site.key(Role.OWNER)).raise_for_status()


def test_secrets_of_the_place_are_in_no_answer(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = site.key(Role.OWNER)
    monkeypatch.setattr(
        "apiserver.control.changefeed_control.check_letters", lambda *args: None
    )  # no bucket answers here
    dead = "s3://b/p?access-key=a&secret-access-key=hidden&session-token=hidden"
    made = site.ask("POST", FEEDS, owner, json=feed("s", tmp_path, dead_letter=dead))
    answers = [made, site.get(f"{FEEDS}/s", owner), site.get(FEEDS, owner)]
    shown = "s3://b/p?access-key=a&secret-access-key=***&session-token=***"
    assert all(shown in answer.text and "hidden" not in answer.text for answer in answers)
    assert CHANGEFEEDS.get(site.parts.catalog, MINE, "s").dead_letter == dead


def test_a_consumer_has_no_dead_letters(site: Site) -> None:
    body = {"changefeed_id": "c", "dead_letter": "file:///dead"}
    assert is_problem(site.ask("POST", FEEDS, site.key(Role.OWNER), json=body), 400, "TS-1001")


@pytest.fixture
def run(site: Site) -> Iterator[Callable[..., Any]]:
    """What `tistream changefeed WORDS` prints."""
    server = HttpServer(site.app, "127.0.0.1", 0)
    server.start()

    def run(*words: str) -> Any:
        more = ["-c", "1", "-t", "1", "--url", server.url, "--key", site.key(Role.OWNER), "--json"]
        done = CliRunner().invoke(command_line(["changefeed"]), ["changefeed", *words, *more], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    yield run
    server.stop()


def test_the_command_line_names_changes_and_removes_a_place(
    site: Site, tmp_path: Path, run: Callable[..., Any]
) -> None:
    sink, dead = f"file://{tmp_path}/lake?protocol=csv", f"file://{tmp_path}/dead"
    assert run("create", "lake", "--sink-uri", sink, "--dead-letter", dead)["dead_letter"] == dead
    site.ask("POST", f"{FEEDS}/lake:pause", site.key(Role.OWNER)).raise_for_status()
    assert run("update", "lake", "--idle-hours", "2")["dead_letter"] == dead
    for place in (f"{dead}2", ""):
        assert run("update", "lake", "--dead-letter", place)["dead_letter"] == place


def test_a_file_with_a_destinations_options_needs_its_address(
    site: Site, tmp_path: Path, run: Callable[..., Any]
) -> None:
    config = tmp_path / "changefeed.toml"
    config.write_text("[filter]\nrules = ['shop.*']\n[sink]\ndate-separator = 'month'\n")
    sink = f"file://{tmp_path}/monthly?protocol=csv"
    run("create", "monthly", "--sink-uri", sink)
    site.ask("POST", f"{FEEDS}/monthly:pause", site.key(Role.OWNER)).raise_for_status()
    with pytest.raises(InvalidInput, match=r"date-separator of .sink. change the destination"):
        run("update", "monthly", "--config", str(config))
    updated = run("update", "monthly", "--config", str(config), "--sink-uri", sink)
    assert updated["sink_uri"] == f"{sink}&date-separator=month"
    assert updated["filters"] == {"tables": "shop.*"}


def test_a_changefeed_is_not_resumed_below_the_log(site: Site, tmp_path: Path) -> None:
    owner, path = site.key(Role.OWNER), f"{FEEDS}/back"
    made = site.ask("POST", FEEDS, owner, json=feed("back", tmp_path))
    assert made.status_code == 201, made.text
    site.ask("POST", f"{path}:pause", owner).raise_for_status()
    begins = get_tenant(site.parts.catalog, MINE).earliest_ts
    below = site.ask("POST", f"{path}:resume", owner, json={"checkpoint_ts": str(begins - 1)})
    assert is_problem(below, 410, "TS-1005"), below.text
    assert site.get(path, owner).json()["state"] == "stopped"
    again = site.ask("POST", f"{path}:resume", owner, json={"checkpoint_ts": str(begins)})
    assert (again.status_code, again.json()["checkpoint_ts"]) == (200, str(begins))
    site.ask("DELETE", path, owner).raise_for_status()
