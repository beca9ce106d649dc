"""The model that is fuzzed: tiny and random, with a template that thinks and calls tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.servers import ROOT

WRITE_SECONDS = 120.0


def write_model(folder: Path) -> Path:
    """In a process of its own: the one that measures stays free of MLX."""
    subprocess.run([sys.executable, "-m", __name__, str(folder)], check=True, cwd=ROOT, timeout=WRITE_SECONDS)
    return folder


def _write(folder: Path) -> None:
    from tests.api.conftest import TOOL_TEMPLATE
    from tests.support.tiny_model import write_tiny_model

    write_tiny_model(folder, vocab_size=512)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TOOL_TEMPLATE}))


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
