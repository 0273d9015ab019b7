"""The errors of filters: they name the parameter, the position in its text and the cause."""

from __future__ import annotations

from collections.abc import Iterable

from tistream.errors import FilterInvalid, did_you_mean

TEXT_MAX = 16_384  #: characters of one parameter
_SHOWN = 24  # characters of the text that a message repeats


def refused(parameter: str, text: str, at: int, cause: str, *, hint: str = ".", **facts: object) -> FilterInvalid:
    """The error of `parameter` whose text is wrong at character `at`, counted from 0. `hint` ends the message."""
    near = text[at : at + _SHOWN]
    place = f"at character {at}" + (f", near {near!r}" if near else ", the end")
    return FilterInvalid(f"{parameter}: {cause} ({place}){hint}", parameter=parameter, position=at, **facts)


def check_length(parameter: str, text: str) -> None:
    """FilterInvalid for a text that is too long, or empty."""
    if len(text) > TEXT_MAX:
        raise refused(parameter, text, TEXT_MAX, f"more than {TEXT_MAX} characters")
    if not text.strip():
        raise refused(parameter, text, 0, "nothing is given")


def unknown_word(parameter: str, text: str, at: int, word: str, known: Iterable[str]) -> FilterInvalid:
    """The error of a word that is none of the known ones."""
    return refused(parameter, text, at, f"{word!r} is not known", hint=did_you_mean(word, known))
