"""The application that docs/applications.md shows is a module that does nothing at its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import blocks


def test_the_import_of_the_application_stores_nothing(tmp_path: Path) -> None:
    """It placed an order: `checkback work shop:app --processes 4` placed four, and four more at each start."""
    application = next(block.text for block in blocks("docs/applications.md") if block.language == "python")
    (tmp_path / "shop.py").write_text(application)
    subprocess.run([sys.executable, "-c", "import shop"], cwd=tmp_path, check=True)
    assert not (tmp_path / "shop.store").exists()
