"""Sink URIs of changefeeds: scheme, place and options, as TiCDC and TiKV-CDC write them.

    tikv://pd1:2379,pd2:2379?concurrency=4          RawKV of another cluster
    s3://bucket/prefix?protocol=canal-json          object storage; file:///var/lib/changes?protocol=csv

Each option is read once, by the destination that knows it; one that is left over is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tistream.catalog.tenancy.changefeeds import masked_uri
from tistream.errors import InvalidInput, did_you_mean

SCHEMES = ("tikv", "s3", "file")
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkUri:
    """A parsed URI. `options` has each option once, as written."""

    text: str
    scheme: str
    authority: str  #: hosts of `tikv`, the bucket of `s3`
    path: str
    options: Mapping[str, str]
    option: str = "sink-uri"  #: of the changefeed, which has this URI

    @property
    def place(self) -> str:
        """The URI without its options."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def shown(self) -> str:
        """The URI without secrets."""
        return masked_uri(self.text)


def parse_sink_uri(text: str, *, option: str = "sink-uri", schemes: Sequence[str] = SCHEMES) -> SinkUri:
    """InvalidInput for a URI that is none, an unknown scheme, or an option that is there twice. `option`: what it names
    as wrong."""
    parts = urlsplit(text)
    if parts.scheme not in schemes:
        raise InvalidInput(
            f"There is no destination {parts.scheme!r}{did_you_mean(parts.scheme, schemes)}", option=option
        )
    options: dict[str, str] = {}
    for name, value in query_options(parts.query):
        if name in options:
            raise InvalidInput(f"The option {name} is given twice.", option=name)
        options[name] = value
    place = unquote(parts.path)
    return SinkUri(text=text, scheme=parts.scheme, authority=parts.netloc, path=place, options=options, option=option)


def query_options(query: str) -> Iterator[tuple[str, str]]:
    """The options of a URI. Other than in a form of a browser, `+` is a plus: secrets of S3 have it and are pasted as
    they are."""
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        yield unquote(name), unquote(value)


@dataclass(slots=True)
class OptionReader:
    """Reads the options of a URI by name and type; `finish` refuses those that nothing has read."""

    uri: SinkUri
    _read: set[str] = field(default_factory=set)

    def text(self, name: str, default: str = "") -> str:
        """As written."""
        self._read.add(name)
        return self.uri.options.get(name, default)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        text = self.text(name, str(default).lower()).lower()
        if text not in ("true", "false"):
            raise InvalidInput(f"The option {name} is true or false, not {text!r}.", option=name)
        return text == "true"

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number in [least, most]."""
        text = self.text(name, str(default))
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
            raise InvalidInput(f"The option {name} is a number from {least} to {most}, not {text!r}.", option=name)
        return int(text)

    def seconds(self, name: str, default: float, *, least: float, most: float) -> float:
        """A duration such as `500ms`, `5s` or `10m`."""
        text = self.text(name, f"{default}s")
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|)", text, re.ASCII)
        seconds = float(match[1]) * _UNITS[match[2]] if match else -1.0
        if not least <= seconds <= most:
            raise InvalidInput(
                f"The option {name} is a duration from {least:g}s to {most:g}s such as 5s, not {text!r}.", option=name
            )
        return seconds

    def choice(self, name: str, known: tuple[str, ...], default: str | None = None) -> str:
        """One of these words. InvalidInput when it is missing and has no default."""
        text = self.text(name, default or "")
        if text not in known:
            cause = f"There is no {name} {text!r}" if text else f"The option {name} is missing"
            raise InvalidInput(cause + did_you_mean(text, known), option=name)
        return text

    def finish(self) -> None:
        """InvalidInput for an option that was not read."""
        for name in self.uri.options:
            if name not in self._read:
                raise InvalidInput(
                    f"There is no option {name!r} of {self.uri.scheme} destinations{did_you_mean(name, self._read)}",
                    option=name,
                )
