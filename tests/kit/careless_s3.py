"""An S3 server that ignores `If-None-Match`: a proxy that takes the header off on the way to a real one.

So do servers that are not for TiStream. The real one must check no signatures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

_HOP = {"connection", "transfer-encoding", "content-encoding", "content-length", "date", "server", "keep-alive"}


@contextmanager
def careless_s3(endpoint: str) -> Iterator[str]:
    """The address of the proxy in front of the server at `endpoint`."""
    with httpx2.Client(base_url=endpoint, timeout=60) as behind:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = [(name, value) for name, value in self.headers.items() if name.lower() != "if-none-match"]
                answer = behind.request(self.command, self.path, headers=headers, content=body)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                length = answer.headers.get("content-length", "0") if self.command == "HEAD" else len(answer.content)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, name="careless-s3", daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()
