"""Makes `tistream-server`: the folders of the services, and exactly this version of `tistream` as its requirement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SERVICES = (
    "apiserver", "backfill", "backup", "compactor", "destinations", "dispatcher", "metaserver", "pusher", "reading",
    "replicator", "schemas", "sorter",
)  # fmt: skip
#: The demo, the sample and the modelled clusters are part of it. What judges TiStream stays in the repository.
LEFT_OUT = ("chaos", "dst", "__pycache__")


class Metadata(MetadataHookInterface):
    """Requires the extra of `tistream` that lists what the services need: each dependency is declared once."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies."""
        metadata["dependencies"] = [f"tistream[services]=={metadata['version']}"]


class Build(BuildHookInterface[Any]):
    """Adds the folders, which stand beside this one in the repository and in the sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders and modules that the wheel contains."""
        root = Path(self.root).parents[1]
        simulator = [path for path in (root / "simulator").iterdir() if path.name not in LEFT_OUT]
        for path in (*(root / name for name in SERVICES), *simulator):
            build_data["force_include"][str(path)] = path.relative_to(root).as_posix()
