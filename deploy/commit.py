"""Write the commit into the wheel of a development version, for `laar --version`."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Add `laar/commit.txt` to the wheel, if the sources are a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find the commit; an editable installation finds its own whenever it is asked."""
        if version == "editable" or ".dev" not in self.metadata.version:
            return
        module = runpy.run_path(str(Path(self.root, "src", "laar", "cli", "version.py")))
        if commit := module["commit_of"](Path(self.root)):
            self.folder = tempfile.TemporaryDirectory()
            file = Path(self.folder.name, module["COMMIT_FILE"])
            file.write_text(commit, "utf-8")
            build_data["force_include"][str(file)] = f"laar/{file.name}"
