"""Which form an answer takes: `?format=` wins, else the Accept header, else JSON."""

from __future__ import annotations

import difflib

from tistream.errors import InvalidInput

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

#: format word -> media type of the answer
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
_ACCEPTED = {
    JSON: "json",
    NDJSON: "ndjson",
    "application/jsonl": "ndjson",
    ARROW: "arrow",
    CSV: "csv",
    **{media: name for name, media in FORMATS.items() if media.startswith("application/vnd.tistream.")},
}


class NotAcceptable(InvalidInput):
    """None of the media types in Accept is offered."""

    code = "TS-1006"


def choose(word: str | None, accept: str | None) -> str:
    """The format word of the answer. InvalidInput for an unknown word, NotAcceptable for an Accept that offers none."""
    if word is not None:
        if word not in FORMATS:
            near = difflib.get_close_matches(word, FORMATS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InvalidInput(f"There is no format '{word[:40]}'.{hint}", offers=", ".join(FORMATS))
        return word
    if not accept:
        return "json"
    for media in _by_weight(accept):
        if media in ("*/*", "application/*"):
            return "json"
        if media in _ACCEPTED:
            return _ACCEPTED[media]
    raise NotAcceptable(f"Accept '{accept[:80]}' names nothing that is offered.", offers=", ".join(_ACCEPTED))


def _by_weight(accept: str) -> list[str]:
    weighted = []
    for n, part in enumerate(accept.split(",")):
        media, *params = (p.strip().lower() for p in part.split(";"))
        quality = next((p[2:] for p in params if p.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if weight > 0:
            weighted.append((-weight, n, media))
    return [media for _, _, media in sorted(weighted)]
