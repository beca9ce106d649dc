"""A tokenizer that only transformers can read: other files than tokenizer.json, or a class in Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from chorus.text.stop_tokens import read_settings

# What transformers reads of config.json when it chooses a tokenizer's class.
_NAMES = ("model_type", "model_name", "tokenizer_class", "_name_or_path")


class TransformersTokenizer:
    def __init__(self, folder: Path, *, trust_remote_code: bool) -> None:
        # It says at length that it misses PyTorch, which we do not need.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(
            str(folder), config=_names_only(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
        # How long a prompt may be is the model's business; without this, a long one is warned about on stderr.
        loaded.model_max_length = sys.maxsize
        self._tokenizer = loaded
        self.backend: Tokenizer | None = getattr(loaded, "backend_tokenizer", None)
        self.plain_backend = self.backend if _decodes_plainly(loaded) else None
        self.special_ids = frozenset(loaded.all_special_ids)
        self.eos_id: int | None = loaded.eos_token_id
        template = loaded.chat_template
        named = template if isinstance(template, dict) else {"default": template}
        self.templates: Mapping[str, str] = {name: source for name, source in named.items() if source}

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        )

    def vocabulary(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab())

    def added_tokens(self) -> dict[str, int]:
        return dict(self._tokenizer.get_added_vocab())

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
        continue_last: bool,
        for_answer: bool,
    ) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=for_answer and not continue_last,
                continue_final_message=continue_last,
                tokenize=False,
                **arguments,
            )
        )

    def seams(self) -> tuple[str, ...]:
        """None: what a class in Python does with a text is not known."""
        return ()

    def encode_parts(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text, special=False) for text in texts]


def _names_only(folder: Path) -> Any:
    """A configuration of the model's type with the names from its config.json and with no number of it: transformers
    checks those, and would refuse a tokenizer for what it thinks of the model.
    """
    from transformers import AutoConfig, PreTrainedConfig

    said = read_settings(folder / "config.json")
    names = {name: said[name] for name in _NAMES if isinstance(said.get(name), str)}
    try:
        config = AutoConfig.for_model(names.get("model_type"))
    except ValueError:  # newer than the installed transformers, or of a kind that has no defaults
        config = PreTrainedConfig()
    for name, value in names.items():
        setattr(config, name, value)
    return config


def _decodes_plainly(tokenizer: Any) -> bool:
    """Whether decoding is all the Rust tokenizer's own: no Python class has a say in it."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode")
    )
