"""The folders of a bucket by name, without a listing of what is in them: one LIST request for each."""

from __future__ import annotations

from collections.abc import Iterator

from tistream.objectstore.protocol import ObjectStore

_BEHIND_SLASH = "0"  # the character after "/": a key that begins so sorts behind everything in the folder


def folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The names of the folders in this one, whose prefix ends with a slash, in order."""
    after = ""
    while (info := next(iter(store.list(prefix, after)), None)) is not None:
        name, slash, _ = info.key.removeprefix(prefix).partition("/")
        after = info.key
        if slash:
            yield name
            after = f"{prefix}{name}{_BEHIND_SLASH}"
