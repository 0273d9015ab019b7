"""The command line from outside: exit statuses, words, no traces, a quick start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from backup.core.compare import Comparison
from tests.kit.invoked import invoke
from tistream.cli import changefeed_verify, run
from tistream.cli import main as cli
from tistream.cli.files import split_url
from tistream.cli.filter_options import FilterOptions, filters_of, read_filter_file
from tistream.cli.output import OutputForm
from tistream.cli.pull import PullRequest, parse_names, parse_query, parse_url
from tistream.cli.push import parse_speed
from tistream.errors import (
    CatalogUnavailable,
    CorruptObject,
    ErrorKind,
    Fenced,
    InvalidInput,
    NotFound,
    TiStreamError,
    UpstreamContractViolated,
)

SLOW_TO_IMPORT = frozenset(
    ["numpy", "pyarrow", "numba", "polars", "fastapi", "sqlalchemy", "pydantic.main", "httpx2", "obstore", "rich"]
)


def test_a_timestamp_both_ways(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    # 2026-11-21T08:03:06.318Z is 1795248186318 ms; a TSO is (ms << 18) + logical
    status, out, err = invoke(monkeypatch, capfd, "tso", str((1795248186318 << 18) + 1))
    assert (status, err) == (0, "")
    assert out == "470613540554145793 · 2026-11-21T08:03:06.318Z · physical 1795248186318 ms · logical 1\n"
    for text in ("2026-11-21T08:03:06.318Z", "2026-11-21T08:03:06.318", "2026-11-21T10:03:06.318+02:00"):
        assert invoke(monkeypatch, capfd, "tso", text)[1].startswith("470613540554145792 · ")


def test_the_version(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(monkeypatch, capfd, "--version") == (0, f"TiStream {version('tistream')}\n", "")


def test_polars_has_one_thread_unless_the_environment_says_or_the_role_has_large_frames(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    invoke(monkeypatch, capfd, "--version")
    assert os.environ["POLARS_MAX_THREADS"] == "1"
    monkeypatch.setenv("POLARS_MAX_THREADS", "3")
    invoke(monkeypatch, capfd, "--version")
    assert os.environ["POLARS_MAX_THREADS"] == "3"
    monkeypatch.delenv("POLARS_MAX_THREADS")
    invoke(monkeypatch, capfd, "sort", "--help")
    assert "POLARS_MAX_THREADS" not in os.environ, "its frames are large"


def test_the_shell_completes_commands() -> None:
    completion = {"_TISTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "tistream tena", "COMP_CWORD": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("tistream")],
        capture_output=True, text=True, check=False, env={**os.environ, **completion},
    )  # fmt: skip
    assert done.stdout.split() == ["tenant"], done.stderr


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (("tso", "yesterday"), 2, "neither a TSO nor an RFC 3339 time"),
        (("tso", str(1 << 63)), 2, "more than 63 bits"),
        (("tso", "1969-12-31T23:59:59Z"), 2, "before 1970"),
        (("nothing",), 2, "No such command"),
        (("up",), 2, "--data"),
        (("up", "--data", "/dev/null/x"), 2, "Cannot keep data in"),
        (("up", "--data", "{tmp}", "--host", "0.0.0.0"), 2, "loopback only"),
        (("up", "--data", "{tmp}", "--auth", "token"), 2, "server.auth"),
        (("serve",), 2, "--object-store"),
        (("pull", "http://127.0.0.1:1/v1/other"), 2, "is not a"),
        (("pull", "-O", "x"), 2, "NAME=VALUE"),
        (("push", "--capture", "{tmp}"), 3, "lacks a file"),
        (("push", "--capture", "{tmp}", "--speed", "-1"), 2, "positive number"),
        (("push",), 2, "give one of"),
        (("push", "--capture", "{tmp}", "--log-backup", "file://{tmp}"), 2, "give one of"),
        (("push", "--log-backup", "{tmp}", "--start-ts", "9"), 2, "not the address of an object store"),
        (("push", "--capture", "{tmp}", "--recording", "{tmp}"), 2, "give one of"),
        (("push", "--recording", "{tmp}"), 3, "no recording here"),
        (("status", "--url", "http://127.0.0.1:1"), 4, "does not answer"),
        (("status", "--format", "xml"), 2, "table"),
        (("inspect", "file", "{tmp}/none"), 3, "no file"),
        (("inspect", "file", "{tmp}"), 2, "Cannot read"),
        (("inspect", "file", "file://{tmp}/none"), 3, "no object"),
        (("inspect", "file", "gs://bucket/name"), 2, "known are"),
        (("inspect", "file", "s3://bucket"), 2, "names no object"),
    ],
)
def test_errors_are_one_line_and_an_exit_status(
    args: tuple[str, ...],
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    exit_status, out, err = invoke(monkeypatch, capfd, *(a.replace("{tmp}", str(tmp_path)) for a in args))
    assert (exit_status, out) == (status, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("no"), 2),
        (NotFound("no"), 3),
        (CatalogUnavailable("no"), 4),
        (Fenced("no"), 5),
        (CorruptObject("no", object="x"), 1),
        (UpstreamContractViolated("no"), 1),
        (TiStreamError("no"), 70),
        (ValueError("a defect"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "command_line", lambda arguments: fail)
    assert invoke(monkeypatch, capfd)[0] == status
    assert set(cli.EXIT) == set(ErrorKind)


def test_a_hint_stands_below_the_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        error = NotFound("There is no shop.", database="shop")
        error.hint = "Look into the list."
        raise error

    monkeypatch.setattr(cli, "command_line", lambda arguments: fail)
    err = invoke(monkeypatch, capfd)[2]
    assert err == "tistream: There is no shop. (database=shop) [TS-1010]\n  Look into the list.\n"


def modules_after(program: str) -> set[str]:
    """What a new process has imported once it has run this."""
    whole = f"import json, sys; {program}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, check=True, timeout=200)
    return set(json.loads(done.stdout))


def modules_of(*arguments: str) -> set[str]:
    """What a new process has imported once it knows the commands that these arguments ask for."""
    return modules_after(f"from tistream.cli import main; main.command_line({arguments!r})")


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    assert not SLOW_TO_IMPORT & modules_of()


def test_the_client_that_commands_use_brings_neither_arrow_nor_asyncio() -> None:
    assert not (SLOW_TO_IMPORT | {"asyncio"}) - {"httpx2"} & modules_after("import tistream.client")
    assert {"asyncio", "pyarrow"} <= modules_after("from tistream.client import ArrowPage, AsyncClient")


def test_a_command_imports_no_other_commands_modules() -> None:
    modules = {target.partition(":")[0] for target in cli.COMMANDS.values()}
    assert {name.removeprefix("tistream.cli.") for name in modules_of("tso", "1")} & modules == {"time"}


def test_every_command_of_the_table_is_registered_under_its_name() -> None:
    assert set(getattr(get_command(cli.command_line()), "commands", {})) == set(cli.COMMANDS)
    for name in cli.COMMANDS:
        assert list(getattr(get_command(cli.command_line([name])), "commands", {})) == [name]


def test_names_and_addresses_of_a_pull() -> None:
    assert parse_names("*") == (None, None)
    assert parse_names("shop") == ("shop", None)
    assert parse_names("shop.order.items") == ("shop", "order.items")
    address = "https://host:1/v1/clusters/2/tenants/3/databases/a%2Fb/tables/t/changes?start_ts=5&format=csv&null=%5CN"
    assert parse_url(address) == ("https://host:1", 2, 3, "a/b", "t")
    assert parse_query(address) == {"start_ts": "5", "format": "csv", "null": "\\N"}


def test_the_line_that_resumes_a_pull_asks_for_the_same() -> None:
    request = PullRequest(
        url="http://h:1", cluster=2, tenant=3, database="shop", table=None, format="canal-json", until=None, limit=None,
        options={"enable-tidb-extension": "true"}, filters={"tables": "shop.*,!shop.x", "where": "a > 'b'"},
    )  # fmt: skip
    assert shlex.split(request.resume("abc", follow=True)) == [
        *("tistream", "pull", "shop", "--url", "http://h:1", "-c", "2", "-t", "3", "--format", "canal-json"),
        *("-O", "enable-tidb-extension=true", "--tables=shop.*,!shop.x", "--where=a > 'b'"),
        *("--cursor", "abc", "--follow"),
    ]
    assert "--format" not in replace(request, format=None).resume("abc", follow=False), "readable rows again"
    assert request.sent == {"enable-tidb-extension": "true", "tables": "shop.*,!shop.x", "where": "a > 'b'"}


def test_filters_come_from_address_file_and_options(tmp_path: Path) -> None:
    file = tmp_path / "changefeed.toml"
    file.write_text(
        """[filter]
        rules = ['shop.*', '!shop.audit_*']
        [[filter.event-filters]]
        matcher = ["test.worker"]
        ignore-event = ["insert"]
        """
    )
    query = parse_query("http://h/changes?tables=a.*&tables=!a.b&columns=id&where=x=1")
    assert query == {"tables": "a.*,!a.b", "columns": "id", "where": "x=1"}
    filters = filters_of(query, file, FilterOptions(where="y = 2", ops=["insert", "ddl"]))
    assert filters == {
        "tables": "shop.*,!shop.audit_*", "columns": "id", "where": "y = 2", "ops": "insert,ddl",
        "event_filters": '[{"matcher":["test.worker"],"ignore-event":["insert"]}]',
    }  # fmt: skip
    for text, words in (("[sink]", r"no \[filter\]"), ("[filter]\nx = 1", "x of"), ("[filter", "cannot be read")):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_filter_file(file)


def test_speeds() -> None:
    assert parse_speed("max") is None
    assert parse_speed("2.5") == 2.5
    for text in ("0", "-1", "nan", "inf", "fast"):
        with pytest.raises(InvalidInput):
            parse_speed(text)


def test_an_objects_address_is_split_before_its_query() -> None:
    assert split_url("s3://bucket/a/b.seg?endpoint=http://h:9/x&region=r") == (
        "s3://bucket/a?endpoint=http://h:9/x&region=r",
        "b.seg",
    )
    assert split_url("s3://bucket/b.seg") == ("s3://bucket", "b.seg")
    assert split_url("file:///data/bucket/b%20c.seg") == ("file:///data/bucket", "b c.seg")
    for url in ("s3://bucket", "s3://bucket/", "s3:///b.seg"):
        with pytest.raises(InvalidInput):
            split_url(url)


def test_a_folder_that_another_process_uses_is_refused_until_that_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with run.claimed(tmp_path):
        status, _, err = invoke(monkeypatch, capfd, "up", "--data", str(tmp_path), "--port", "0", "--auth", "none")
        assert status == 2
        assert f"Process {os.getpid()} already runs on {tmp_path}" in " ".join(err.split())
    program = (
        "import os, pathlib, signal, sys\n"
        "from tistream.cli.run import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path]).returncode == -signal.SIGKILL
    with run.claimed(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_verified_replica_says_that_expiries_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """A scan of the destination returns no expiries, so differences cannot be counted."""
    changefeed_verify._show_keys(7, Comparison(), OutputForm.JSON)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["equal"], shown["expiries"]) == (True, "not compared")
    assert "expiry" not in shown
