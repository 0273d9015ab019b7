"""The API key for a service, whom a client trusts, and its own certificate: the command line, the environment, or what
`tistream login` stored.

    --key KEY           >  TISTREAM_KEY          >  the key stored for this address
    --ca FILE           >  TISTREAM_CA           >  the file stored for this address  >  the authorities of the system
    --client-cert FILE  >  TISTREAM_CLIENT_CERT
    --client-key FILE   >  TISTREAM_CLIENT_KEY

Stored keys are in $XDG_CONFIG_HOME/tistream/credentials.json (else ~/.config/tistream/); a file that others can read is
refused. Commands without an address use that of the last login.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from tistream.errors import ConfigError
from tistream.runtime.tls import ClientFiles

VARIABLE = "TISTREAM_KEY"
FILES = {"ca": "TISTREAM_CA", "cert": "TISTREAM_CLIENT_CERT", "key": "TISTREAM_CLIENT_KEY"}

_given: str | None = None
_given_files: dict[str, str] = {}


def use_key(key: str | None) -> None:
    """Use this key in this process; None: the environment or the file decides."""
    global _given
    _given = key


def key_for(url: str) -> str | None:
    """The key for requests to `url`, or None."""
    return _given or os.environ.get(VARIABLE) or _read()["keys"].get(_same(url))


def use_file(name: str, path: str | None) -> None:
    """Use this file in this process (`ca`, `cert` or `key`); None: the environment decides, or what is stored."""
    _given_files.pop(name, None)
    if path:
        _given_files[name] = path


def files_for(url: str, ca: str | Path | None = None, cert: tuple[str | Path, str | Path] | None = None) -> ClientFiles:
    """The files of TLS for requests to `url`. `ca`, and `cert` with its key, win over all others."""
    if not url.lower().startswith("https:"):
        return ClientFiles()
    named: dict[str, str | Path | None] = {
        name: _given_files.get(name) or os.environ.get(variable) for name, variable in FILES.items()
    }
    if cert is not None:
        named["cert"], named["key"] = cert
    named["ca"] = ca or named["ca"] or _read()["cas"].get(_same(url))
    files = {name: Path(path) for name, path in named.items() if path}
    return ClientFiles(ca=files.get("ca"), cert=files.get("cert"), key=files.get("key"))


def last_url() -> str | None:
    """The address of the last login, or None."""
    url = _read()["url"]
    return str(url) if url else None


def keep(url: str, key: str) -> Path:
    """Store the key and the CA file of this address and make the address the default; the path of the file."""
    content, ca = _read(), files_for(url).ca
    content["url"], content["keys"] = _same(url), {**content["keys"], _same(url): key}
    if ca is not None:
        content["cas"] = {**content["cas"], _same(url): str(ca.absolute())}
    return _write(content)


def forget(url: str) -> bool:
    """Delete the key of this address. False when none is stored."""
    content = _read()
    if _same(url) not in content["keys"]:
        return False
    del content["keys"][_same(url)]
    content["cas"].pop(_same(url), None)
    if content["url"] == _same(url):
        content["url"] = ""
    _write(content)
    return True


def file() -> Path:
    """The path of the stored keys."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):
        folder = os.path.expanduser("~/.config")  # stays as it is for a user without a home
    return Path(folder) / "tistream" / "credentials.json"


def _same(url: str) -> str:
    return url.rstrip("/").lower()


def _read() -> dict[str, Any]:
    path = file()
    try:
        with path.open("rb") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise ConfigError(f"{path} contains API keys and is readable by others: chmod 600 {path}")
            content = json.load(opened)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # missing, or another user's
        return {"url": "", "keys": {}, "cas": {}}
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not isinstance(content, dict) or not isinstance(content.get("keys"), dict):
        raise ConfigError(f"{path} is not a credentials file of tistream login: delete it and log in again.")
    cas = content.get("cas")
    return {
        "url": str(content.get("url") or ""),
        "keys": content["keys"],
        "cas": cas if isinstance(cas, dict) else {},
    }


def _write(content: dict[str, Any]) -> Path:
    path = file()
    if not path.is_absolute():
        raise ConfigError("No home folder to store a key in: set XDG_CONFIG_HOME, or use TISTREAM_KEY.")
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
