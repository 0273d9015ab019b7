"""Requests that cost as much as they can, made from the description of an API: each operation in each of its formats
with the longest options, with the longest text of each parameter, and with large bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_plus

from tests.kit.priced import Asked

JSON = "application/json"
HEAD_TEXT_BYTES = 50_000  # as a query writes them: with the longest path that is nearly all that a head may have
_BODY_TEXT_CHARS = 60_000
_SHORT = 1000  # one text of at most so many characters says what all say
_MEMBERS = 5_000
_DEEP = b"[" * 100_000 + b"]" * 100_000
_LISTS = b"[" + b"[]," * 5_000 + b"[]]"

#: what parsers, expressions and messages of errors take longest for
TEXTS = {
    "wide characters": "\U0001f600",
    "digits": "7",
    "rules": "a*b.*c,",
    "expressions": "/(\\pL\\pN?){0,18}/.*,",
    "negations": "not ",
    "documents": '[{"matcher":["',
}


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A request, and whether it must be refused."""

    label: str
    asked: Asked
    refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of a description, with the values of its parameters."""

    name: str
    method: str
    path: str
    described: Mapping[str, Any]
    schemas: Mapping[str, Any]
    values: Mapping[str, str]
    options: Mapping[str, str]  #: of formats, as long as they may be

    @property
    def is_stream(self) -> bool:
        """Whether its answer has no end of its own."""
        return self.path.endswith(":stream")

    @property
    def formats(self) -> Sequence[str]:
        """The formats that it offers."""
        for parameter in self._parameters("query"):
            if parameter["name"] == "format":
                listed = re.search(r"One of ([a-z, -]+)\.", parameter.get("description", ""))
                return listed[1].split(", ") if listed else [str(word) for word in parameter["schema"]["enum"]]
        return ()

    @property
    def unbounded(self) -> list[str]:
        """Parameters of the query and members of the body whose texts have no greatest length."""
        texts = [(p["name"], self._of(p["schema"])) for p in self._parameters("query")]
        if self._shown_body:
            body = self._of(self.described["requestBody"]["content"][JSON]["schema"])
            texts += [(name, self._of(member)) for name, member in body["properties"].items()]
        return [name for name, schema in texts if not self._has_end(schema)]

    def _has_end(self, schema: Mapping[str, Any]) -> bool:
        inner = [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), Mapping)]
        if inner:
            return all(self._has_end(self._of(each)) for each in inner)
        of_pattern = "pattern" in schema and not re.search(r"[*+]|,\}", schema["pattern"])
        return schema.get("type") != "string" or of_pattern or bool({"enum", "maxLength"} & schema.keys())

    def large(self) -> Iterator[Hostile]:
        """Requests with the largest answers."""
        given = {name: text for name, text in self.options.items() if self._schema(name)}
        if "maximum" in self._schema("limit"):
            given["limit"] = str(self._schema("limit")["maximum"])
        for name in self.formats or [""]:
            for framing in self._schema("framing").get("enum", [""]):
                chosen = {"format": name, "framing": framing}
                label = " ".join(filter(None, chosen.values()))
                yield self._made(f"as {label or 'shown'}", {**given, **{n: w for n, w in chosen.items() if w}})

    def long(self) -> Iterator[Hostile]:
        """Requests with long texts, and with large bodies."""
        few = {"limit": "1"} if self._schema("limit") and not self.is_stream else {}
        for parameter in self._parameters("query"):
            name, schema = parameter["name"], self._of(parameter["schema"])
            if schema.get("type") != "string" or "enum" in schema:
                continue
            most = schema.get("maxLength", HEAD_TEXT_BYTES)
            for kind, text in list(TEXTS.items())[: 1 if most <= _SHORT else None]:
                fits = min(most, HEAD_TEXT_BYTES * len(text) // len(quote_plus(text)))
                yield self._made(f"{name} of {kind}", {**few, name: (text * fits)[:fits]})
            if most < HEAD_TEXT_BYTES:
                yield self._made(f"{name} above its length", {**few, name: "1" * (most + 1)}, refused=True)
        for parameter in self._parameters("header"):
            yield self._made(f"a long {parameter['name']}", few, headers={parameter["name"]: "x/y;q=0.5," * 5000})
        for parameter in self._parameters("path"):
            if self._of(parameter["schema"]).get("type") == "string":
                name = parameter["name"]
                yield self._made(f"a long {name}", few, path={name: "x" * HEAD_TEXT_BYTES}, refused=True)
        if self.method != "GET":
            yield from self._bodies()

    def _bodies(self) -> Iterator[Hostile]:
        yield self._made("a deep body", body=_DEEP, refused=True)
        yield self._made("a body of lists", body=_LISTS, refused=True)
        members = json.dumps({f"m{n}": n for n in range(_MEMBERS)})
        yield self._made("a body of many members", body=members.encode(), refused=True)
        if not self._shown_body:
            return
        schema = self._of(self.described["requestBody"]["content"][JSON]["schema"])
        for name, member in schema["properties"].items():
            for label, value in self._values(self._of(member)):
                yield self._made(f"{name}: {label}", body=json.dumps({**self._shown_body, name: value}).encode())
            rest = json.dumps({each: value for each, value in self._shown_body.items() if each != name})[1:]
            start, end = f'{{"{name}": '.encode(), (f", {rest}" if rest != "}" else rest).encode()
            for label, value in {"deep": _DEEP, "of many digits": b"9" * _BODY_TEXT_CHARS}.items():
                yield self._made(f"{name}: {label}", body=start + value + end, refused=True)

    def _values(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Large values of a schema."""
        if schema.get("type") == "string" and "enum" not in schema:
            for kind, text in TEXTS.items():
                for most in {_BODY_TEXT_CHARS, schema.get("maxLength", _BODY_TEXT_CHARS)}:
                    yield f"{most} characters of {kind}", (text * most)[:most]
        elif schema.get("type") == "array":
            yield "many items", ["x"] * _MEMBERS
            for label, value in self._values(self._of(schema["items"])):
                yield f"a list with {label}", [value] * 2
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield "many members", {f"m{n}": "x" for n in range(_MEMBERS)}
            for name in schema["propertyNames"]["enum"]:
                for label, value in self._values(self._of(schema["additionalProperties"])):
                    yield f"{name}, {label}", {name: value}

    def _made(
        self,
        label: str,
        query: Mapping[str, str] | None = None,
        *,
        path: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        refused: bool = False,
    ) -> Hostile:
        places = {p["name"]: self._value(p) for p in self._parameters("path")} | dict(path or {})
        usual = [p for p in self._parameters("query") if p.get("required") or p["name"] in self.values]
        request = Asked(
            method=self.method,
            path=re.sub(r"\{(\w+)\}", lambda m: places[m[1]], self.path),
            query=list({**{p["name"]: self._value(p) for p in usual}, **(query or {})}.items()),
            headers=headers or {},
        )
        if body is None and self._shown_body:
            body = json.dumps(self._shown_body).encode()
        if body is not None:
            request = replace(request, body=body, headers={**request.headers, "content-type": JSON})
        return Hostile(label=label, asked=request, refused=refused)

    @property
    def _shown_body(self) -> Mapping[str, Any]:
        """The example."""
        body: Mapping[str, Any] = (
            self.described.get("requestBody", {}).get("content", {}).get(JSON, {}).get("example", {})
        )
        return body

    def _value(self, parameter: Mapping[str, Any]) -> str:
        name = parameter["name"]
        assert name in self.values or "example" in parameter, f"{self.name}: a value of {name} is missing"
        return self.values[name] if name in self.values else str(parameter["example"])

    def _parameters(self, where: str) -> list[Mapping[str, Any]]:
        return [each for each in self.described.get("parameters", ()) if each["in"] == where]

    def _schema(self, name: str) -> Mapping[str, Any]:
        """Of a parameter of the query; empty if there is none."""
        return next((self._of(p["schema"]) for p in self._parameters("query") if p["name"] == name), {})

    def _of(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema of values that are not null, with what stands beside it."""
        if "$ref" in schema:
            return self._of(self.schemas[schema["$ref"].rpartition("/")[2]])
        given = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
        return {**schema, **self._of(given[0])} if len(given) == 1 else schema
