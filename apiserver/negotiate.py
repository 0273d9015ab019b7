"""Content negotiation: `?format=` wins, else the Accept header, else JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tistream.errors import InvalidInput, did_you_mean

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

#: format -> media type
FORMATS = {
    "json": JSON,
    "ndjson": NDJSON,
    "arrow": ARROW,
    "raw-arrow": ARROW,
    "canal-json": "application/vnd.tistream.canal+json",
    "debezium": "application/vnd.tistream.debezium+json",
    "open-protocol": "application/vnd.tistream.open-protocol+json",
    "simple": "application/vnd.tistream.simple+json",
    "csv": CSV,
}


_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


class NotAcceptable(InvalidInput):
    """None of the media types in Accept is offered."""

    code = "TS-1006"


def choose(name: str | None, accept: str | None, formats: Mapping[str, str] = FORMATS) -> str:
    """The format of the answer, of `formats` (format -> media type; the first of a media type counts for Accept).
    InvalidInput for an unknown name, NotAcceptable when Accept names none."""
    if name is not None:
        if name not in formats:
            near = did_you_mean(name, formats)
            raise InvalidInput(f"There is no format '{name[:40]}'{near}", offers=", ".join(formats))
        return name
    if not accept:
        return "json"
    accepted = {media: word for word, media in reversed(list(formats.items()))}
    in_order = {media: accepted[media] for media in dict.fromkeys(formats.values())} | {"application/jsonl": "ndjson"}
    chosen = offered(accept, in_order)
    if chosen is not None:
        return chosen
    raise NotAcceptable(f"Accept '{accept[:80]}' names no offered media type.", offers=", ".join(in_order))


def offered(accept: str, offers: Mapping[str, str]) -> str | None:
    """The format that an Accept header prefers. `offers`: media type -> format, the default first."""
    weighted = weights(accept)
    refused = {media for media, weight in weighted.items() if not weight}
    for media in sorted(weighted, key=lambda m: -weighted[m]):
        offer = _within(media, refused, offers) if weighted[media] else None
        if offer is not None:
            return offer
    return None


def weights(header: str) -> dict[str, float]:
    """The values of an Accept or Accept-Encoding header with their weights, in order. 0 is a refusal; so is an invalid
    weight."""
    weight_of: dict[str, float] = {}
    for part in header.split(","):
        word, *params = (p.strip().lower() for p in part.split(";"))
        if not word:
            continue
        text = next((p[2:].strip() for p in params if p.startswith("q=")), "1")
        weight_of.setdefault(word, float(text) if _WEIGHT.fullmatch(text) else 0.0)
    return weight_of


def _within(media: str, refused: set[str], offers: Mapping[str, str]) -> str | None:
    """The format of a media type or range; ranges exclude refused media types."""
    if not media.endswith("/*"):
        return offers.get(media)
    within = "" if media == "*/*" else media[:-1]
    return next((word for m, word in offers.items() if m.startswith(within) and m not in refused), None)
