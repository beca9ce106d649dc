"""The models that faults happen to: a tiny one made on the spot, and a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WRITE_SECONDS = 120.0

# Eight heads and four pairs of keys and values: over four ranks, each holds some.
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
LIVELINESS = 4
"""By so much the products are larger than upstream's: else it would repeat one word for ever, and one more or less, or
a wrong position, would not be seen.
"""


def write_tiny(folder: Path) -> Path:
    """In a process of its own, so that this one stays without MLX."""
    subprocess.run(
        [sys.executable, "-m", "tests.chaos.models", str(folder)], check=True, cwd=ROOT, timeout=WRITE_SECONDS
    )
    return folder


def main() -> None:
    import mlx.core as mx

    from benchmarks.models import write_word_model
    from tests.support.tiny_model import QWEN2_75M

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    write_word_model(folder, QWEN2_75M | SHAPE)
    weights = mx.load(str(folder / "model.safetensors"))
    lively = {name: array * LIVELINESS if "proj.weight" in name else array for name, array in weights.items()}
    mx.save_safetensors(str(folder / "lively.safetensors"), lively, metadata={"format": "mlx"})
    (folder / "lively.safetensors").replace(folder / "model.safetensors")


if __name__ == "__main__":
    main()
