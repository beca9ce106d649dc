"""Five models that differ only in their random weights, and what each of them says when it is alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import ROOT

WRITE_SECONDS = 600.0
NAMES = ("ada", "bob", "cleo", "dan", "eve")
PROMPTS = ("The quick brown fox", "Once upon a time there was", "In the beginning", "To be or not to be, that is")
TOKENS = 12

TINY = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 512}
LARGE = {"hidden_size": 768, "num_hidden_layers": 10, "intermediate_size": 2560, "vocab_size": 2048}
"""Some 300 MB in float32: what a model holds is then more than what its processes take without one."""
_FORM = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024}


@dataclass(frozen=True)
class Prepared:
    folder: Path
    answers: dict[str, dict[str, str]]
    """By the model's name and the prompt: the likeliest continuation, as one rank alone gives it."""

    def path(self, name: str) -> Path:
        return self.folder / name


def prepare(folder: Path, large: bool, names: tuple[str, ...] = NAMES) -> Prepared:
    """In a process of its own: the one that asks stays free of MLX."""
    command = [sys.executable, "-m", __name__, str(folder), "large" if large else "tiny", *names]
    subprocess.run(command, check=True, cwd=ROOT, timeout=WRITE_SECONDS)
    return Prepared(folder, json.loads((folder / "answers.json").read_text()))


def _write(folder: Path, size: dict[str, int], names: list[str]) -> None:
    from tests.support.alone import text_alone
    from tests.support.tiny_model import write_tiny_model

    answers = {}
    for seed, name in enumerate(names, 1):
        write_tiny_model(folder / name, "llama", seed=seed, **_FORM, **size)
        answers[name] = {prompt: text_alone(folder / name, prompt, TOKENS) for prompt in PROMPTS}
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    _write(Path(sys.argv[1]), LARGE if sys.argv[2] == "large" else TINY, sys.argv[3:])
