"""Two small vocabularies: one in which markup is spelled by letters, and one in which it is made of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import count, groupby
from pathlib import Path

from llguidance import LLTokenizer

from tests.support.tiny_tokenizer import write_tiny_tokenizer

END_OF_TEXT = 2

# Markup that real vocabularies hold as tokens of their own.
MARKUP = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|constrain|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call_start|>",
    "<think>",
    "</think>",
    "<longcat_tool_call>",
    "</longcat_arg_value>",
    "｜DSML｜",
]


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: LLTokenizer
    added: dict[str, int]

    @cached_property
    def _names(self) -> dict[int, str]:
        return {number: name for name, number in self.added.items()}

    def decode(self, tokens: list[int]) -> str:
        text = b""
        for is_added, run in groupby(tokens, self._names.__contains__):
            if is_added:
                text += "".join(self._names[token] for token in run).encode()
            else:
                text += self.tokenizer.decode_bytes(list(run))
        return text.decode()


def vocabularies_in(folder: Path) -> dict[bool, Vocabulary]:
    """By whether markup is made of tokens."""
    write_tiny_tokenizer(folder)
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    plain = LLTokenizer(json.dumps(spec), eos_token=END_OF_TEXT)
    tokens = dict(zip(MARKUP, count(512), strict=False))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec["added_tokens"] += [{"id": n, "content": name, "special": n % 2 == 0, **flags} for name, n in tokens.items()]
    return {
        False: Vocabulary(plain, {}),
        True: Vocabulary(LLTokenizer(json.dumps(spec), eos_token=END_OF_TEXT), tokens),
    }
