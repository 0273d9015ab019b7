"""A service that asks for keys: first start, pushers, consumers and a browser, all as real programs.

Needs Debian's chromium.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from simulator.chaos.servers.processes import TiStreamProcess, Up, wait_until_ready
from tests.kit.console_look import chromium

KEY = re.compile(r"tsk_[a-z2-7]{13}_[a-z2-7]{46}")
LINK = re.compile(r"http://\S+/login#tsl_[a-z2-7]{39}")


class Person:
    """Somebody with a home folder and a command line."""

    def __init__(self, up: Up, home: Path) -> None:
        self.up, self.home = up, home
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TISTREAM_", "AWS_"))}
        self.env = {**clean, "XDG_CONFIG_HOME": str(home)}

    def run(self, *args: str, status: int = 0, **env: str) -> tuple[str, str]:
        """(standard output, standard error) of `tistream ARGS`."""
        done = subprocess.run(
            [sys.executable, "-m", "tistream.cli.main", *args],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            timeout=240,
        )
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    service = Up(tmp_path_factory.mktemp("auth"))
    service.args = tuple("keys" if word == "none" else word for word in service.args)
    with service:
        yield service


@pytest.fixture(scope="module")
def owner(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Who started the service, and is logged in with a key that was created beside it."""
    person = Person(up, tmp_path_factory.mktemp("home"))
    assert "`tistream key owner`" in up.output()
    key = person.run("key", "owner", "--data", up.args[2])[0].strip()
    assert "owner" in person.run("login", "--url", up.url, "--key", key)[1]
    return person


def test_a_key_is_kept_for_its_owner_only(owner: Person) -> None:
    (file,) = owner.home.rglob("credentials.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "no tenant is registered" in owner.run("tenant", "list")[0], "address and key are those of the login"
    stranger = Person(owner.up, owner.home / "nobody")
    assert "TS-1080" in stranger.run("tenant", "list", "--url", owner.up.url, status=2)[1]
    file.chmod(0o644)
    assert "chmod 600" in owner.run("tenant", "list", status=2)[1]
    file.chmod(0o600)


def test_a_tenant_from_registration_to_rows_by_its_own_keys(owner: Person, recording: Path, tmp_path: Path) -> None:
    url, log = owner.up.url, tmp_path / "register.log"
    of = ("-c", "1", "-t", "1")
    args = ("tenant", "register", *of, "--wait", "--url", url)
    with TiStreamProcess(*args, log=log, env={"XDG_CONFIG_HOME": str(owner.home)}) as waiting:
        while "start the pushers" not in waiting.output():
            assert waiting.alive, waiting.output()
        (push_key,) = set(KEY.findall(waiting.output()))
        nobody = Person(owner.up, tmp_path)
        push = ("push", "--capture", str(recording), *of, "--url", url, "--speed", "max")
        with TiStreamProcess(*push, log=tmp_path / "push.log", env={"TISTREAM_KEY": push_key}) as pusher:
            assert waiting.wait(240) == 0, waiting.output()
            assert pusher.wait(240) == 0, pusher.output()
    said = waiting.output()
    assert said.index("✓ registered") < said.index("✓ schema snapshot read") < said.index("✓ active")
    consumer = owner.run("key", "create", "spark", "--role", "consumer", *of)[0].strip()
    deadline = time.monotonic() + 240
    while len(pulled := nobody.run("pull", "shop", "--url", url, "--key", consumer)[0].splitlines()) < 100:
        assert time.monotonic() < deadline, (tmp_path / "push.log").read_text()
    assert all(json.loads(line)["type"] for line in pulled)
    assert "TS-1081" in nobody.run("pull", "shop", "--url", url, TISTREAM_KEY=push_key, status=2)[1]
    assert "TS-1010" in nobody.run("pull", "shop", "-t", "2", "--url", url, TISTREAM_KEY=consumer, status=3)[1]
    new = owner.run("tenant", "rotate-key", *of, "--overlap-hours", "0")[0].strip()
    listed = {row["key_id"]: row["state"] for row in json.loads(owner.run("key", "list", "--json")[0])}
    assert (listed[push_key[4:17]], listed[new[4:17]]) == ("expired", "living")
    headings, *rows = owner.run("key", "list", *of)[0].splitlines()
    assert headings.split() == ["key", "state", "role", "tenant", "tables", "last", "used", "ends", "name"]
    assert {row.split()[3] for row in rows} == {"1/1"}
    owner.run("key", "revoke", consumer)
    assert "revoked" in nobody.run("pull", "shop", "--url", url, "--key", consumer, status=2)[1]


def test_a_link_opens_the_console_in_a_browser_once(owner: Person) -> None:
    link = owner.run("login", "--console")[0].strip()
    assert LINK.fullmatch(link)
    with chromium("--host-resolver-rules=MAP ts.test 127.0.0.1") as browser:
        page = browser.new_context().new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto(owner.up.url + "/overview")
        expect(page).to_have_url(re.compile("/login"))
        report = Axe().run(page)
        assert report.violations_count == 0, report.generate_report()
        page.goto(link)
        expect(page.get_by_role("status")).to_contain_text("only if you asked for the link yourself")
        assert not page.context.cookies(), "a link alone signs nobody in"
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(owner.up.url + "/overview")
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert not complaints
        # what later pages will do: a button that changes something by htmx carries the token by itself
        page.evaluate(
            """() => { document.querySelector('main').insertAdjacentHTML('beforeend',
                '<button id="probe" hx-post="/v1/console-codes" hx-swap="none">probe</button>');
                htmx.process(document.querySelector('main')); }"""
        )
        with page.expect_response("**/v1/console-codes") as answered:
            page.locator("#probe").click()
        assert answered.value.status == 201
        assert page.evaluate("fetch('/v1/console-codes', {method: 'POST'}).then(a => a.status)") == 403
        page.evaluate(
            """() => document.querySelector('main').insertAdjacentHTML('beforeend',
                '<form method="post" action="/v1/console-codes" target="_blank">' +
                '<button id="plain">plain</button></form>')"""
        )
        with page.context.expect_page() as opened:
            page.locator("#plain").click()
        expect(opened.value.locator("body")).to_contain_text("login#tsl_")
        other = browser.new_context().new_page()
        other.goto(link)
        other.get_by_role("button", name="Sign in").click()
        expect(other.get_by_role("alert")).to_contain_text("This login code is invalid, used or expired")
        page.get_by_role("button", name="Sign out").click()
        # a part of the page that is asked for meanwhile leads there as well, with the way back
        expect(page).to_have_url(re.compile(r"/login(\?next=%2Foverview)?$"))
        assert page.evaluate("fetch('/v1/tenants').then(a => a.status)") == 401
        # by a name that browsers do not trust over http they say less of where a form comes from
        afar = browser.new_context().new_page()
        afar.goto(owner.run("login", "--console")[0].strip().replace("127.0.0.1", "ts.test"))
        afar.get_by_role("button", name="Sign in").click()
        expect(afar).to_have_url(re.compile("ts.test.*/overview"))


def test_no_start_writes_a_key_to_the_log(owner: Person) -> None:
    up = owner.up
    up.kill()
    up.start()
    wait_until_ready(up)
    assert up.output().count("`tistream key owner`") == 1, "there is an owner's key now"
    assert not KEY.findall(up.output())
    assert not LINK.findall(up.output())
    assert "1/1" in owner.run("tenant", "list")[0]
