"""What the probes answer in JSON, as OpenAPI describes it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Liveness(BaseModel):
    """The process runs."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether every component answers."""

    status: Literal["ok", "not ready"]
    checks: dict[str, str] = Field(
        description="by component: `ok`, or what is wrong, which only a key that may see the whole deployment reads",
        examples=[{"catalog": "ok", "object store": "ok"}],
    )


class ShownProblem(BaseModel):
    """A present problem of a component."""

    source: str = Field(description="the component", examples=["sorter-1"])
    code: str = Field(description="see /problems", examples=["TS-1020"])
    message: str = Field(examples=["the object store does not answer"])
    fatal: bool = Field(description="it does not end without an operator")
    contained: bool = Field(description="only an item has stopped, not the component")
    facts: dict[str, str] = Field(examples=[{"object": "schema_snap/x"}])


class Health(BaseModel):
    """Current problems, of this process and as others report them."""

    status: Literal["ok", "problems"]
    problems: list[ShownProblem]
    catalog_export_age_s: float | None = Field(
        default=None,
        description="of the newest export that the catalog can be restored from; null before the first one, absent "
        "while exports are off",
        examples=[212.5],
    )


class RunningVersion(BaseModel):
    """The running version."""

    version: str = Field(examples=["0.1.0"])
