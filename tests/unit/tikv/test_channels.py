"""Certificates that are renewed while a process runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tistream.tikv.channels import _OPEN, Channels, Pem, TlsFiles


def write(file: Path, text: bytes, at: int) -> None:
    file.write_bytes(text)
    os.utime(file, (at, at))


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    files = (tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    for file in files:
        write(file, b"old " + file.name.encode(), 1)
    return files


def test_rewritten_files_are_reloaded(paths: tuple[Path, Path, Path]) -> None:
    ca, certificate, key = paths
    tls = TlsFiles(ca=ca, certificate=certificate, key=key)
    old = Pem(ca=b"old ca.pem", certificate=b"old cert.pem", key=b"old key.pem")
    assert tls.current() == old
    write(certificate, b"new", 2)
    write(key, b"new key", 2)
    assert tls.current() == Pem(ca=b"old ca.pem", certificate=b"new", key=b"new key")
    key.unlink()  # in the middle of being replaced
    assert tls.current().certificate == b"new"


def test_a_file_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ca\.pem"):
        TlsFiles(ca=tmp_path / "ca.pem", certificate=None, key=None)


def test_the_next_use_of_a_channel_has_the_new_certificate(paths: tuple[Path, Path, Path]) -> None:
    channels = Channels(TlsFiles(ca=paths[0], certificate=None, key=None))
    first = channels.at("127.0.0.1:1")
    assert channels.at("127.0.0.1:1") is first
    assert channels.at("127.0.0.1:2") is not first
    write(paths[0], b"new", 2)
    assert channels.at("127.0.0.1:1") is not first
    first.unary_unary("/x/y")  # calls that begin on the old one are not cut off
    channels.close()


def test_channels_to_addresses_that_are_gone_are_given_back() -> None:
    channels = Channels(None)
    before = len(_OPEN._users)
    for n in range(1, 50):
        channels.at(f"127.0.0.1:{n}")
        channel = channels.at("127.0.0.1:99")
        channels.keep(["127.0.0.1:99"])
        assert channels.at("127.0.0.1:99") is channel
    assert len(_OPEN._users) - before <= 3, "the one that is kept, and few on which calls may be in progress"
    channels.close()
    assert len(_OPEN._users) == before
