"""Opens the store of an address.

memory://                       inside this process
file:///absolute/folder         a local folder, or one that several machines mount
s3://bucket/prefix              AWS; region and credentials from the AWS_* variables or the machine's role
s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tistream.errors import ConfigError
from tistream.objectstore.keys import check_key
from tistream.objectstore.protocol import ObjectStore
from tistream.objectstore.session import WriteSession

_KNOWN = "memory://, file:///absolute/folder, s3://bucket/prefix?endpoint=...&region=..."
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket and the prefix to use in it."""

    bucket: str
    prefix: str  #: without outer slashes; empty = the whole bucket
    endpoint: str | None  #: None = AWS
    region: str | None
    path_style: bool


def open_store(url: str, *, foreign: bool = False) -> ObjectStore:
    """Open the store at this address, without network requests. ConfigError when the address is invalid.

    `foreign`: read-only; a missing folder is not created."""
    parts = _split(url)
    match parts.scheme:
        case "memory":
            return _memory(parts, url)
        case "file":
            return _local(parts, url, foreign)
        case "s3":
            return _s3(parts, url)
    raise ConfigError(f"not the address of an object store; known are {_KNOWN}", url=url)


def open_session(url: str, session: WriteSession) -> ObjectStore:
    """Open the bucket at this address with write-only credentials, requested before each request."""
    return _s3(_split(url), url, session)


def s3_place(url: str) -> S3Place | None:
    """The bucket of this address; None for other stores. ConfigError when the address is invalid."""
    parts = _split(url)
    return _place(parts, url) if parts.scheme == "s3" else None


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as e:
        raise ConfigError(f"not the address of an object store; known are {_KNOWN}", url=url) from e


def _memory(parts: SplitResult, url: str) -> ObjectStore:
    from tistream.objectstore.memory import MemoryStore

    if parts.netloc or parts.path or parts.query or parts.fragment:
        raise ConfigError("memory:// takes no further parts: each store is separate", url=url)
    return MemoryStore()


def _local(parts: SplitResult, url: str, foreign: bool) -> ObjectStore:
    from tistream.objectstore.local import LocalStore

    folder = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not folder.is_absolute():
        raise ConfigError("a folder address must be file:///absolute/folder", url=url)
    return LocalStore(folder, foreign=foreign)


def _s3(parts: SplitResult, url: str, session: WriteSession | None = None) -> ObjectStore:
    from tistream.objectstore.s3 import S3Store

    place = _place(parts, url)
    return S3Store(
        place.bucket,
        prefix=place.prefix,
        endpoint=place.endpoint,
        region=place.region,
        path_style=place.path_style,
        session=session,
    )


def _place(parts: SplitResult, url: str) -> S3Place:
    if "@" in parts.netloc:  # not shown: it may contain a secret
        raise ConfigError("credentials are not allowed in the address; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if parts.scheme != "s3" or not parts.netloc or parts.fragment:
        raise ConfigError(f"not the address of a bucket; known are {_KNOWN}", url=url)
    prefix = parts.path.strip("/")
    if prefix:
        check_key(prefix)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    endpoint = options.pop("endpoint", None)
    region = options.pop("region", None)
    path_style = options.pop("path_style", "false" if endpoint is None else "true")
    if options:
        raise ConfigError(f"unknown {', '.join(sorted(options))}; known are endpoint, region, path_style", url=url)
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError("an endpoint must begin with https:// or http://", url=url)
    if path_style not in _BOOL:
        raise ConfigError("path_style must be true or false", url=url)
    return S3Place(bucket=parts.netloc, prefix=prefix, endpoint=endpoint, region=region, path_style=_BOOL[path_style])
