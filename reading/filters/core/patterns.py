"""Patterns of names, as in the table filters of TiDB's tools.

    plain            a name of letters, digits, $ and _
    wildcards        * any characters, ? one, [a-z] one of these, [!a-z] none of these; a backslash escapes
    quotes           "..." or `...`: the name as it is, the quote itself doubled
    /.../            a regular expression (RE2) that is found anywhere in the name

Names are compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from reading.filters.core.refusal import refused
from reading.filters.core.regexes import Price, found
from schemas.names import folded

_REGEX = re.compile(r"/((?:\\.|[^/\\])+)/", re.DOTALL)
_QUOTED = {'"': re.compile(r'"((?:""|[^"])+)"'), "`": re.compile(r"`((?:``|[^`])+)`")}
_CLASS = re.compile(r"\[(!?)((?:\\[^0-9a-zA-Z]|[^\\\]])+)\]")
_ALL = "(?s)^.*$"
_KNOWN_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern of one name."""

    name: str | None = None  #: the plain name as written; None: `regex` decides
    regex: str = ""
    at: int = 0  #: its place in the text
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)  #: by name, in lower case

    def matches(self, name: str) -> bool:
        """Whether a name matches, in any case."""
        if self.name is not None:
            return folded(self.name) == folded(name)
        if self.matches_all:
            return True
        name = folded(name)
        known = self._known.get(name)
        return self._look_up([name])[0] if known is None else known

    def look_at(self, names: Iterable[str]) -> None:
        """Match many names, in lower case, at once: an expression is compiled for each call."""
        if self.name is not None or self.matches_all:
            return
        new = list(dict.fromkeys(name for name in names if name not in self._known))
        if new:
            self._look_up(new)

    def _look_up(self, names: list[str]) -> list[bool]:
        """Match these names and keep the answers. Another thread may drop what is kept at any time."""
        answers: list[bool] = found(pa.array(names), self.regex, ignore_case=True).tolist()
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
        self._known.update(zip(names, answers, strict=True))
        return answers

    @property
    def matches_all(self) -> bool:
        """Whether it is `*`."""
        return self.name is None and self.regex == _ALL


class PatternReader:
    """Reads patterns from the text of a parameter."""

    def __init__(self, parameter: str, text: str, price: Price | None = None) -> None:
        self.parameter, self.text, self.at = parameter, text, 0
        self._price = price or Price()

    def refused(self, cause: str, at: int | None = None) -> Exception:
        """The error at a place, by default the current one."""
        return refused(self.parameter, self.text, self.at if at is None else at, cause)

    def peek(self) -> str:
        """The next character, empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self, characters: str) -> None:
        """Go past any of these characters."""
        while self.peek() and self.peek() in characters:
            self.at += 1

    def items(self, read: Callable[[], None]) -> None:
        """Read items between commas; empty ones are skipped, as empty lines in a rule file."""
        while True:
            self.skip(" \t\r\n,")
            if not self.peek():
                return
            read()
            self.skip(" \t\r\n")
            if self.peek() not in ("", ","):
                raise self.refused(f"unexpected {self.peek()!r}")

    def pattern(self) -> Pattern:
        """One pattern."""
        start, first = self.at, self.peek()
        if first == "/":
            return self._matched(_REGEX, "an incomplete regular expression", lambda m: self._regex(m[1], start))
        if first in _QUOTED and first:
            quote = _QUOTED[first]
            return self._matched(
                quote, "an incomplete quoted name", lambda m: Pattern(name=m[1].replace(first * 2, first), at=start)
            )
        return self._wildcard(start)

    def _matched(self, form: re.Pattern[str], cause: str, make: Callable[[re.Match[str]], Pattern]) -> Pattern:
        match = form.match(self.text, self.at)
        if match is None:
            raise self.refused(cause)
        made = make(match)
        self.at = match.end()
        return made

    def _regex(self, regex: str, start: int) -> Pattern:
        if regex == _ALL:
            return Pattern(regex=regex, at=start)
        if too_large := self._price.refusal(regex):
            raise self.refused(too_large, start)
        try:
            pc.match_substring_regex(pa.array([""]), regex, ignore_case=True)
        except pa.ArrowInvalid as e:
            raise self.refused(f"not a regular expression: {str(e).splitlines()[0]}", start) from e
        return Pattern(regex=regex, at=start)

    def _wildcard(self, start: int) -> Pattern:
        name, parts, plain = "", "", True
        while (c := self.peek()) and c not in ".,":
            if c == "\\":
                self.at += 1
                c = self.peek()
                if not c or (c.isascii() and c.isalnum()):
                    raise self.refused("a backslash escapes a special character only", self.at - 1)
                name, parts = name + c, parts + re.escape(c)
            elif c in "*?":
                plain, parts = False, parts + {"*": ".*", "?": "."}[c]
            elif c == "[":
                match = _CLASS.match(self.text, self.at)
                if match is None:
                    raise self.refused("an incomplete character class")
                # a ^ that begins a class is itself; in the regular expression it would negate
                plain, begin = False, "[^" if match[1] else "[\\" if match[2].startswith("^") else "["
                parts += begin + match[2] + "]"
                self.at = match.end() - 1
            elif c in "$_" or c.isalnum() or not c.isascii():
                name, parts = name + c, parts + re.escape(c)
            elif c.isspace():
                break
            else:
                raise self.refused(f"{c!r} has no meaning here: quote the name, or put a backslash before it")
            self.at += 1
        if self.at == start:
            raise self.refused("a name is missing")
        return Pattern(name=name, at=start) if plain else self._regex(f"(?s)^{parts}$", start)
