"""The whole service on one thread: real shells and cores over simulated time, store, catalog, network and upstream."""

from __future__ import annotations

import os

# Set before polars is loaded: a run is one thread, and several runs share the machine.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
