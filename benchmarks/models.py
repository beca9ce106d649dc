"""The models that are measured: random ones, written once, and the catalog's default in full precision.

Running this module writes one; MLX is imported there only, so that the measuring process stays small.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path

from benchmarks.servers import ROOT

WRITE_SECONDS = 900.0
QWEN2 = "qwen2-75m"
LLAMA = "llama-400m"
TINY = "llama-tiny"
SMOLLM2 = "smollm2-135m"
FLOAT32_SUFFIX = "-float32"

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_folder(name: str) -> Path:
    """The folder of a model, made first where it is not there yet."""
    folder = _home() / name
    if not folder.is_dir():
        aside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_home()))
        try:
            command = [sys.executable, "-m", "benchmarks.models", name, str(aside)]
            subprocess.run(command, check=True, cwd=ROOT, timeout=WRITE_SECONDS)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def stored_default() -> Path:
    """The catalog's default as it is in the store: the GGUF's own quantized tensors."""
    from chorus.models import resolve

    return resolve(SMOLLM2).path


def _home() -> Path:
    home = Path(tempfile.gettempdir()) / f"chorus-benchmark-models-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to another user: remove it, or set TMPDIR")
    return home


def letter_tokens(number: int) -> Iterator[tuple[str, str]]:
    """Pairs of known parts whose joins are this many new tokens, all of plain letters: first two, then four of them."""
    pairs = list(product(string.ascii_lowercase, repeat=2))
    words = product(("".join(pair) for pair in pairs), repeat=2)
    yield from islice((*pairs, *islice(words, max(0, number - len(pairs)))), number)


def write_letter_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level BPE whose padding is letters: each random token has text at once, so each can be timed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = list(letter_tokens(vocabulary - len(tokens)))
    tokens += [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _write_qwen2(folder: Path) -> None:
    from tests.support.tiny_model import QWEN2_75M, write_random_model

    write_random_model(folder, QWEN2_75M)
    write_letter_tokenizer(folder, QWEN2_75M["vocab_size"])


def _write_llama(folder: Path) -> None:
    from tests.support.tiny_model import LLAMA_400M, write_random_model

    write_random_model(folder, LLAMA_400M)
    write_letter_tokenizer(folder, LLAMA_400M["vocab_size"])


def _write_tiny(folder: Path) -> None:
    from tests.support.tiny_model import LLAMA_400M, write_random_model

    config = LLAMA_400M | {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
    }
    write_random_model(folder, config)
    write_letter_tokenizer(folder, config["vocab_size"])


def _write_smollm2(folder: Path) -> None:
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model, load, save_model

    source = stored_default()
    model = dequantize_model(load(str(source))[0])
    model.set_dtype(mx.float32)
    save_model(folder, model)
    config = json.loads((source / "config.json").read_text())
    config = {key: value for key, value in config.items() if key != "quantization"} | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, folder / name)


_WRITERS: dict[str, Callable[[Path], None]] = {
    QWEN2: _write_qwen2,
    LLAMA: _write_llama,
    TINY: _write_tiny,
    SMOLLM2 + FLOAT32_SUFFIX: _write_smollm2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=_WRITERS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    _WRITERS[options.name](options.folder)


if __name__ == "__main__":
    main()
