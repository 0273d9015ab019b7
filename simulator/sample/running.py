"""The shop in a thread of the process that runs the service."""

from __future__ import annotations

import threading
from pathlib import Path

from pusher.control import HttpControl
from pusher.tenant_store import opening
from simulator.sample.push import SamplePush
from tistream.ids import Tenant
from tistream.runtime.tls import ClientFiles


class RunningSample:
    """`stop` it. `key`: the API key of its pushers, where keys are required; `files`: of TLS, see HttpControl."""

    def __init__(self, url: str, tenant: Tenant, path: Path, key: str = "", files: ClientFiles | None = None) -> None:
        self.error: Exception | None = None  #: what ended it early
        self._stop = threading.Event()
        self._control = HttpControl(url, tenant, token=key, files=files)
        self.push = SamplePush(path, self._control, key=key, stop=self._stop)
        self._thread = threading.Thread(target=self._run, name="push-sample", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is pushed any more."""
        self._stop.set()
        self._thread.join()
        self._control.close()

    def _run(self) -> None:
        try:
            self.push.run(opening(self._control))
        except Exception as e:  # noqa: BLE001 - whatever it is, the command that started it says so and ends
            self.error = e
