"""A Hugging Face folder in which tiny models have the names of those in the examples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.tiny_model import write_tiny_model

MODELS = {
    "mlx-community/Qwen3-14B-4bit": 6,
    "mlx-community/Qwen3-1.7B-8bit": 28,
    "mlx-community/MiniMax-M2.1-4bit": 62,
    "mlx-community/Llama-3.2-1B-Instruct-4bit": 6,
}
"""How many layers those that stand for them have: as many as the real ones where a line counts them."""
REVISION = "a" * 40


def write_hub(home: Path, names: Iterable[str] = MODELS) -> Path:
    """What HF_HOME is, with these models."""
    for name in names:
        folder = home / "hub" / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(REVISION)
        write_tiny_model(
            folder / "snapshots" / REVISION,
            "llama",
            vocab_size=512,
            num_hidden_layers=MODELS[name],
            max_position_embeddings=4096,
        )
    return home
