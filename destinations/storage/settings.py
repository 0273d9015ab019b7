"""Options of a sink URI for object storage, by the names of TiCDC.

s3://bucket/prefix?protocol=canal-json&enable-tidb-extension=true&region=eu-central-1
file:///var/lib/changes?protocol=csv&include-commit-ts=true
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from destinations.storage.core.contents import ParquetFiles, TextFiles
from destinations.storage.core.names import DATE_SEPARATORS
from destinations.storage.core.parts import Layout
from destinations.uri import OptionReader, SinkUri
from reading.formats import FormatOptions, create_format, parse_options
from tistream.errors import InvalidInput
from tistream.outbound.policy import Policy
from tistream.outbound.rules import BUCKET, Target, endpoint_parts

PROTOCOLS = ("canal-json", "csv", "parquet")
_EXTENSIONS = {"canal-json": "json", "csv": "csv", "parquet": "parquet"}
#: the options of each protocol (see reading.formats.options)
_OF_PROTOCOL = {
    "canal-json": (
        "enable-tidb-extension",
        "content-compatible",
        "only-output-updated-columns",
        "output-raw-change-event",
        "terminator",
    ),
    "csv": (
        "delimiter",
        "quote",
        "null",
        "terminator",
        "include-commit-ts",
        "output-old-value",
        "binary-encoding-method",
        "output-raw-change-event",
    ),
    "parquet": (),
}
_MIB = 1 << 20
_REGION = re.compile(r"[a-z0-9-]{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How a bucket is reached; what is empty comes from the AWS_* variables or the machine's role."""

    bucket: str
    prefix: str  #: without outer slashes
    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    path_style: bool = True

    @property
    def target(self) -> Target:
        """What is opened. InvalidInput for an endpoint that is more than a server."""
        path = "/".join(filter(None, (self.bucket, self.prefix)))
        if not self.endpoint:
            return Target(scheme="s3", host=self.bucket, path=self.prefix)
        scheme, address = endpoint_parts(self.endpoint)
        return Target.server(scheme, address, path)

    def admit(self, policy: Policy) -> None:
        """TargetRefused when the bucket may not be used, or not with these credentials."""
        policy.check_bucket(
            self.target, bucket=self.bucket, prefix=self.prefix, endpoint=self.endpoint, machine=not self.access_key
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """A folder or a bucket."""

    place: str  #: the URI without options
    folder: str = ""  #: of file://
    s3: S3Settings | None = None

    def admit(self, policy: Policy) -> None:
        """TargetRefused when it may not be opened."""
        if self.s3 is not None:
            self.s3.admit(policy)
        else:
            policy.check(Target(scheme="file", path=self.folder.strip("/")))

    @classmethod
    def of(cls, uri: SinkUri) -> FilePlace:
        """The place of a URI whose options say only how it is reached. InvalidInput names the option."""
        reader = OptionReader(uri)
        file_place = cls(**_reached(uri, reader))
        reader.finish()
        return file_place


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(FilePlace):
    """All options of a storage destination."""

    protocol: str
    options: FormatOptions = field(default_factory=FormatOptions)
    flush_s: float = 5.0  #: a stretch is at least this long while there is little to write
    file_bytes: int = 64 * _MIB
    layout: Layout
    worker_count: int = 0  #: lanes; 0 = not given

    @property
    def extension(self) -> str:
        """Of data files."""
        return _EXTENSIONS[self.protocol]

    def contents(self) -> TextFiles | ParquetFiles:
        """What renders the data files."""
        if self.protocol == "parquet":
            return ParquetFiles(limit=self.file_bytes)
        made = create_format(self.protocol, self.options)
        return TextFiles(format=made, end=self.options.terminator.encode(), limit=self.file_bytes)


def read_settings(uri: SinkUri) -> StorageSettings:
    """InvalidInput names the option that is missing, unknown or wrong."""
    reader = OptionReader(uri)
    protocol = reader.choice("protocol", PROTOCOLS)
    known = _OF_PROTOCOL[protocol]
    texts = {name: reader.text(name) for name in known}
    given = {name: text for name, text in texts.items() if name in uri.options}
    settings = StorageSettings(
        **_reached(uri, reader),
        protocol=protocol,
        options=parse_options(given, built_at_commit=True),
        flush_s=reader.seconds("flush-interval", 5, least=2, most=600),
        file_bytes=reader.number("file-size", 64 * _MIB, least=_MIB, most=512 * _MIB),
        layout=Layout(
            date_separator=reader.choice("date-separator", DATE_SEPARATORS, "day"),
            partitions=reader.boolean("enable-partition-separator", True),
        ),
        worker_count=reader.number("worker-count", 1, least=1, most=512) if "worker-count" in uri.options else 0,
    )
    reader.finish()
    return settings


def _reached(uri: SinkUri, reader: OptionReader) -> dict[str, Any]:
    """The fields of a FilePlace."""
    if uri.scheme == "file":
        return {"place": uri.place, "folder": _folder(uri)}
    return {"place": uri.place, "s3": _s3(uri, reader)}


def _folder(uri: SinkUri) -> str:
    if uri.authority or not uri.path.startswith("/"):
        raise InvalidInput("A folder is file:///absolute/folder.", option=uri.option)
    return uri.path


def _s3(uri: SinkUri, reader: OptionReader) -> S3Settings:
    if not BUCKET.fullmatch(uri.authority):
        raise InvalidInput("A bucket is s3://bucket/prefix, with credentials as options.", option=uri.option)
    endpoint, region = reader.text("endpoint"), reader.text("region")
    if endpoint:
        endpoint_parts(endpoint)
    if not _REGION.fullmatch(region):
        raise InvalidInput("The option region is the name of a region, such as eu-central-1.", option="region")
    s3_settings = S3Settings(
        bucket=uri.authority,
        prefix=uri.path.strip("/"),
        endpoint=endpoint,
        region=region,
        access_key=reader.text("access-key"),
        secret_access_key=reader.text("secret-access-key"),
        session_token=reader.text("session-token"),
        path_style=reader.boolean("force-path-style", True),
    )
    if bool(s3_settings.access_key) != bool(s3_settings.secret_access_key):
        missing = "secret-access-key" if s3_settings.access_key else "access-key"
        raise InvalidInput(f"The option {missing} is missing: both are needed, or none.", option=missing)
    if s3_settings.session_token and not s3_settings.access_key:
        raise InvalidInput("The option access-key is missing: a session token belongs to a key.", option="access-key")
    return s3_settings
