"""Settings: sources in order of strength, unknown keys refused with a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tistream import config
from tistream.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/path/tistream-pusher"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1b2c3d4e-0000-4000-8000-1234567890ab"


def test_flags_beat_environment_beats_file(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[server]\nport = 1\nhost = "127.0.0.1"\n[sorter]\nflush_interval_ms = 50\n', "utf-8")
    env = {"TISTREAM_SERVER_PORT": "2", "TISTREAM_META_DATA_TASKS": "5", "HOME": "/x"}
    loaded = config.load(path, env, {"server.port": 3, "server.host": None})
    assert (loaded.server.port, loaded.meta.data_tasks, loaded.sorter.flush_interval_ms) == (3, 5, 50)
    assert config.load(path, env).server.port == 2
    assert config.load(path).server.port == 1


@pytest.mark.parametrize(
    ("environ", "flags", "word"),
    [
        ({"TISTREAM_SERVER_PROT": "1"}, {}, "TISTREAM_SERVER_PORT"),
        ({}, {"sorter.flush_interval": 1}, "sorter.flush_interval_ms"),
        ({}, {"server.port": "many"}, "server.port"),
        ({}, {"server.port": 70000}, "server.port"),
        ({}, {"server.host": "0.0.0.0"}, "loopback"),
        ({}, {"push.role_arn": "pusher"}, "push.role_arn"),
        ({}, {"push.kms_key_arn": "alias/mine", "push.role_arn": ROLE}, "push.kms_key_arn must have the form"),
        ({}, {"push.kms_key_arn": KEY}, "needs push.role_arn"),
        ({}, {"push.role_arn": ROLE, "push.duration_s": 60}, "push.duration_s"),
        ({}, {"push.role_arn": ROLE, "push.sts_endpoint": "sts.example"}, "push.sts_endpoint"),
        ({}, {"push.role_arn": ROLE, "object_store.url": "file:///data"}, "needs an S3 bucket"),
    ],
)
def test_wrong_settings_name_the_culprit(environ: dict[str, str], flags: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        config.load(None, environ, flags)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("port = = 1", "utf-8")
    with pytest.raises(ConfigError, match=r"t\.toml"):
        config.load(path)
    with pytest.raises(ConfigError, match="absent"):
        config.load(tmp_path / "absent.toml")


def test_the_role_of_pushers_is_of_a_bucket() -> None:
    loaded = config.load(
        None, {}, {"push.role_arn": ROLE, "push.kms_key_arn": KEY, "object_store.url": "s3://changes/production"}
    )
    assert (loaded.push.role_arn, loaded.push.duration_s) == (ROLE, 3600)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        config.load().server.port = 5  # type: ignore[misc]


def test_the_example_of_a_deployment_loads() -> None:
    path = Path(__file__).parents[3] / "infra" / "tistream.toml"
    loaded = config.load(path)
    assert loaded.catalog.url.startswith("mysql+pymysql://")
    assert loaded.object_store.url.startswith("s3://")
