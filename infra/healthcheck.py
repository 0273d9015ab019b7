"""Whether the process of this container answers, asked by the container's HEALTHCHECK.

The API server answers on its HTTP port, the others on the port of their probes; whichever is open is asked. Only the
standard library, so that it starts at once.
"""

from __future__ import annotations

import os
import sys
from urllib.error import URLError
from urllib.request import urlopen

PORTS = (os.environ.get("TISTREAM_SERVER_PORT", "8711"), os.environ.get("TISTREAM_METRICS_PORT", "9464"))
TIMEOUT_S = 3.0


def answers(port: str) -> bool:
    """Whether /livez there says 200."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/livez", timeout=TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if any(answers(port) for port in PORTS) else 1)
