"""Whether the process of this container answers, asked by the container's HEALTHCHECK.

The API server answers on its HTTP port, the others on the port of their probes; whichever is open is asked. With
TISTREAM_TLS_CERT the ports have TLS; /livez asks for no client certificate, and its answer stays in the container, so
the certificate is not checked. Only the standard library, so that it starts at once.
"""

from __future__ import annotations

import os
import ssl
import sys
from urllib.error import URLError
from urllib.request import HTTPSHandler, build_opener

PORTS = (os.environ.get("TISTREAM_SERVER_PORT", "8711"), os.environ.get("TISTREAM_METRICS_PORT", "9464"))
TIMEOUT_S = 3.0
SCHEME = "https" if os.environ.get("TISTREAM_TLS_CERT") else "http"
UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNCHECKED.check_hostname, UNCHECKED.verify_mode = False, ssl.CERT_NONE


def answers(port: str) -> bool:
    """Whether /livez there says 200."""
    try:
        opener = build_opener(HTTPSHandler(context=UNCHECKED))
        with opener.open(f"{SCHEME}://127.0.0.1:{port}/livez", timeout=TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if any(answers(port) for port in PORTS) else 1)
