"""Which API key goes to which service: what was given for this process, the environment, what `tistream login` kept.

    --key KEY  >  TISTREAM_KEY  >  the key kept for this very address

Kept keys lie in $XDG_CONFIG_HOME/tistream/credentials.json (else ~/.config/tistream/), which only its owner may read:
a file that others can read is refused. The address of the last login is the one that commands use when none is given.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from tistream.errors import ConfigError

VARIABLE = "TISTREAM_KEY"

_given: str | None = None


def use_key(key: str | None) -> None:
    """From now on this process shows this key; None: as the environment and the file say."""
    global _given
    _given = key


def key_for(url: str) -> str | None:
    """The key that a request to `url` carries; None when there is none."""
    return _given or os.environ.get(VARIABLE) or _read()["keys"].get(_same(url))


def last_url() -> str | None:
    """The address of the last login; None when there was none."""
    found = _read()["url"]
    return str(found) if found else None


def keep(url: str, key: str) -> Path:
    """Remember the key for this address, and the address; where it lies."""
    found = _read()
    found["url"], found["keys"] = _same(url), {**found["keys"], _same(url): key}
    return _write(found)


def forget(url: str) -> bool:
    """Forget the key of this address. False when there was none."""
    found = _read()
    if _same(url) not in found["keys"]:
        return False
    del found["keys"][_same(url)]
    if found["url"] == _same(url):
        found["url"] = ""
    _write(found)
    return True


def file() -> Path:
    """Where keys are kept."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):
        folder = os.path.expanduser("~/.config")  # of a user without a home it stays as it is, and is not there
    return Path(folder) / "tistream" / "credentials.json"


def _same(url: str) -> str:
    return url.rstrip("/").lower()


def _read() -> dict[str, Any]:
    path = file()
    try:
        with path.open("rb") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise ConfigError(f"{path} holds API keys and can be read by others: chmod 600 {path}")
            found = json.load(opened)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # not there, or somebody else's
        return {"url": "", "keys": {}}
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not isinstance(found, dict) or not isinstance(found.get("keys"), dict):
        raise ConfigError(f"{path} does not hold what tistream login writes: delete it and log in again.")
    return {"url": str(found.get("url") or ""), "keys": found["keys"]}


def _write(content: dict[str, Any]) -> Path:
    path = file()
    if not path.is_absolute():
        raise ConfigError("There is no home folder to keep a key in: set XDG_CONFIG_HOME, or use TISTREAM_KEY.")
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump(content, out, indent=1)
        part.replace(path)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e}") from e
    return path
