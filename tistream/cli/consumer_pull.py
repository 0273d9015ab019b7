"""`tistream pull --consumer NAME`: a member of a consumer that writes changes to standard output.

A batch is acknowledged after its rows have been written and flushed. A member that is killed in between leaves its rows
to the next one, which writes them again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.following import Whole
from tistream.cli.pages_out import drop_output, output_of

if TYPE_CHECKING:
    from tistream.client import Consumer

Name = Annotated[str | None, typer.Option(help="Read as a registered consumer: the service keeps the position.")]
Member = Annotated[str, typer.Option(help="With --consumer: name of this process among its members.")]
Lease = Annotated[
    float, typer.Option(min=1, help="With --consumer: seconds without a pull after which other members take over.")
]


def write_batches(consumer: Consumer, format: str | None, *, follow: bool) -> None:
    """Write the batches of a consumer, and acknowledge each."""
    out = output_of(format, sys.stdout.buffer, follow=True)  # written at once: it is acknowledged
    try:
        with Whole() as whole:
            try:
                for batch in consumer.batches(follow=follow, acknowledge=False):
                    with whole:
                        out.write(batch.page)
                        consumer.acknowledge(batch)
            except KeyboardInterrupt:
                if not follow:
                    raise
            finally:
                consumer.leave()
        out.close()
    except BrokenPipeError:
        drop_output()
