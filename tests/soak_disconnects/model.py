"""The model whose clients leave: tiny and random, with caches so wide that one that is kept is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.servers import ROOT

WRITE_SECONDS = 120.0


def write_model(folder: Path) -> Path:
    """In a process of its own: the one that asks stays free of MLX."""
    subprocess.run([sys.executable, "-m", __name__, str(folder)], check=True, cwd=ROOT, timeout=WRITE_SECONDS)
    return folder


def _write(folder: Path) -> None:
    from tests.support.tiny_model import write_tiny_model

    wide = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=4096, **wide)


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
