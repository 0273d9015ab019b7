"""Structured logs on stderr: pretty on a terminal, JSON elsewhere, without secrets on both."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from tistream.cli.redact import without_secrets
from tistream.cli.terminal import clean_lines, unguarded
from tistream.config import LogSettings
from tistream.http.auth.core import keys


def configure(settings: LogSettings) -> None:
    """Set up structlog for this process."""
    pretty = settings.format == "pretty" or (settings.format == "auto" and sys.stderr.isatty())
    renderers = [_printable, structlog.dev.ConsoleRenderer()] if pretty else [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            without_secrets,
            *renderers,
            _without_keys,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(unguarded(sys.stderr)),  # looked up at each line
    )


def _printable(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event with texts that do not steer a terminal: only the renderer's colours do."""
    return {name: clean_lines(value) if isinstance(value, str) else value for name, value in event.items()}


def _without_keys(_logger: object, _method: str, line: Any) -> str:
    """The written line, without API keys."""
    return keys.without_secrets(str(line).encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
