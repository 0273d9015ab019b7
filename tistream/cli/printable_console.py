"""A console of rich whose text never steers a terminal; its styles do, as they are the program's own."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tistream.cli.terminal import clean_lines


class PrintableConsole(Console):
    """Whatever is printed, also inside of tables and bars."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of text and style, cleaned. Segments with `control` move the cursor of a bar."""
        for text, style, control in super().render(renderable, options):
            if control is not None:
                yield Segment(text, style, control)
            else:  # a link in markup would be a sequence of the answer's choice
                yield Segment(clean_lines(text), style.update_link(None) if style and style.link else style)
