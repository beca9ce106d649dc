"""A tokenizer read from its files does what transformers does with the same folder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from chorus.models.resolve import resolve
from chorus.text.chat_template import RESERVED_ARGUMENTS
from chorus.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world",
    "  two spaces in front, one behind ",
    "a" + " " * 70 + "b\n\n\n\t\tc\r\nd",
    "naïve café Grüße e\u0301 n\u0303 ﬁ Å",
    "日本語の文字と한국어 ελληνικά русский",
    "😀😃 👍🏽 👨‍👩‍👧 🇫🇷 \U0001f9ff",
    "<|im_start|>user\nHi<|im_end|> <|im_end|>",
    "<s>in the text</s> <unk> [SEP] [UNK]",
    "x <think> y</think>z <extra_0><tool> two words",
    "def add(left, right):\n    return left + right  # 0123456789",
    "\u0000\u200b\u00a0\ufeff\u2028end",
]

USER = {"role": "user", "content": "Grüße, 日本 <|im_end|> 😀"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
BEGUN = {"role": "assistant", "content": "The capital "}
THOUGHT = {"role": "assistant", "content": "Paris", "reasoning": "France, so…"}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Köln & <b>", "parameters": {}}}]

CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": ([USER], {}),
    "system": ([SYSTEM, USER, THOUGHT, USER], {}),
    "tools": ([USER], {"tools": TOOLS}),
    "continued": ([USER, BEGUN], {"continue_last": True}),
    "arguments": ([USER], {"template_arguments": {"enable_thinking": True, "bos_token": "<other>"}}),
    "documents": ([USER], {"template_arguments": {"documents": [{"title": "One", "text": "Two"}]}}),
}

# What a template can use of what transformers gives it, in one.
EVERYTHING = """\
{{- bos_token }}{{ image_token }}|{{ pad_token }}|{{ enable_thinking }}|{{ documents | tojson }}
{% set seen = namespace(count=0) %}
    {% for message in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {% set seen.count = seen.count + 1 %}
{{ message.role }}: {% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
{{ message.reasoning_content }}/{{ message.thinking }}
    {% endfor %}
{{ seen.count }} {{ dict(a=1, b=[2, 3]) | tojson(indent=2) }} {{ strftime_now('%Y') }} {{ tools | tojson }}
{%- if add_generation_prompt %} assistant: {% endif %}"""


def change(folder: Path, name: str, **changes: Any) -> None:
    file = folder / name
    held = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(held | changes), encoding="utf-8")


def plain_bpe(folder: Path) -> None:
    tiny_tokenizer.write_tiny_tokenizer(folder)


def token(content: str, **flags: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **usual, **flags}


def bpe_with_listed_tokens(folder: Path) -> None:
    """As transformers 4 wrote it: every added token with its number; some are not in tokenizer.json, one differs."""
    plain_bpe(folder)
    listed = {
        "0": token("<|endoftext|>"),
        "1": token("<|im_start|>"),
        "2": token("<|im_end|>", lstrip=True),
        "512": token("<think>", special=False),
        "513": token("<tool>", rstrip=True),
    }
    extra = ["<|im_start|>", "<extra_0>", {"__type": "AddedToken", **token("two words", lstrip=True)}]
    settings = {"added_tokens_decoder": listed, "additional_special_tokens": extra, "image_token": "<image>"}
    change(folder, "tokenizer_config.json", chat_template=EVERYTHING, **settings)


def bpe_with_named_extra_tokens(folder: Path) -> None:
    plain_bpe(folder)
    change(folder, "tokenizer_config.json", extra_special_tokens={"image_token": "<think>"}, chat_template=EVERYTHING)


def bpe_with_older_files(folder: Path) -> None:
    """As transformers 4.30 wrote it: the special tokens and the added ones in files of their own."""
    plain_bpe(folder)
    change(folder, "added_tokens.json", **{"<think>": 512, "<tool>": 513, "<|im_end|>": 2})
    names = {"bos_token": token("<|im_start|>"), "eos_token": "<|endoftext|>", "image_token": "<image>"}
    change(folder, "special_tokens_map.json", **names)
    change(folder, "tokenizer_config.json", additional_special_tokens=["<tool>", "<extra_0>"], chat_template=EVERYTHING)


def bpe_cut_and_filled(folder: Path) -> None:
    """tokenizer.json as it was amid training, with a length to cut to and one to fill to."""
    plain_bpe(folder)
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    filled = {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    change(folder, "tokenizer.json", truncation=cut, padding={**filled, "pad_type_id": 0, "pad_token": "<|endoftext|>"})


def bpe_that_splits_special_tokens(folder: Path) -> None:
    plain_bpe(folder)
    change(folder, "tokenizer_config.json", split_special_tokens=True)


def bpe_with_named_templates(folder: Path) -> None:
    plain_bpe(folder)
    named = [{"name": "default", "template": EVERYTHING}, {"name": "tool_use", "template": "{{ tools }}{{ messages }}"}]
    change(folder, "tokenizer_config.json", chat_template=named)


def bpe_with_template_files(folder: Path) -> None:
    plain_bpe(folder)
    (folder / "chat_template.jinja").write_text(EVERYTHING, encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(
        "{{ tools | tojson }} {{ messages[0].content }}"
    )


def byte_fallback(folder: Path) -> None:
    tiny_tokenizer.write_byte_fallback_tokenizer(folder)


def byte_fallback_with_bos(folder: Path) -> None:
    byte_fallback(folder)
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    change(folder, "tokenizer.json", post_processor=template)


def byte_fallback_that_says_bos(folder: Path) -> None:
    """The settings ask for what the post-processor does not do."""
    byte_fallback(folder)
    change(folder, "tokenizer_config.json", add_bos_token=True, add_eos_token=True)


def byte_fallback_that_says_no_bos(folder: Path) -> None:
    byte_fallback_with_bos(folder)
    change(folder, "tokenizer_config.json", add_bos_token=False)


def unigram(folder: Path) -> None:
    tiny_tokenizer.write_unigram_tokenizer(folder)


def word_piece(folder: Path) -> None:
    tiny_tokenizer.write_word_piece_tokenizer(folder)


def sentencepiece_of_a_named_class(folder: Path) -> None:
    tiny_tokenizer.write_sentencepiece_model(folder, tokenizer_class="LlamaTokenizer")


def sentencepiece_that_says_bos(folder: Path) -> None:
    tiny_tokenizer.write_sentencepiece_model(
        folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=True
    )


def sentencepiece_as_it_was(folder: Path) -> None:
    """With `legacy`, which early Llama folders say, and with tokens added by number."""
    listed = {"400": token("<think>", special=False), "401": token("<tool>", rstrip=True)}
    tiny_tokenizer.write_sentencepiece_model(
        folder, tokenizer_class="LlamaTokenizer", legacy=True, added_tokens_decoder=listed, chat_template=EVERYTHING
    )


def sentencepiece_unigram(folder: Path) -> None:
    tiny_tokenizer.write_sentencepiece_model(folder, "unigram", tokenizer_class="T5Tokenizer")


def sentencepiece_of_the_models_type(folder: Path) -> None:
    """No class is named: transformers goes by config.json's model_type."""
    tiny_tokenizer.write_sentencepiece_model(folder)
    change(folder, "config.json", model_type="gemma")


def sentencepiece_of_an_overruled_class(folder: Path) -> None:
    """transformers prefers what it knows of the model's type to the class that is named."""
    tiny_tokenizer.write_sentencepiece_model(folder, tokenizer_class="LlamaTokenizer")
    change(folder, "config.json", model_type="mistral")


def merges_of_a_named_class(folder: Path) -> None:
    tiny_tokenizer.write_vocabulary_and_merges(folder, tokenizer_class="GPT2Tokenizer")


def merges_of_the_models_type(folder: Path) -> None:
    tiny_tokenizer.write_vocabulary_and_merges(folder)
    change(folder, "config.json", model_type="qwen2")


def merges_of_a_class_in_the_models_configuration(folder: Path) -> None:
    tiny_tokenizer.write_vocabulary_and_merges(folder)
    change(folder, "config.json", model_type="mamba2", tokenizer_class="GPT2Tokenizer")


WITHOUT_JSON: list[Callable[[Path], None]] = [
    sentencepiece_of_a_named_class,
    sentencepiece_that_says_bos,
    sentencepiece_as_it_was,
    sentencepiece_unigram,
    sentencepiece_of_the_models_type,
    sentencepiece_of_an_overruled_class,
    merges_of_a_named_class,
    merges_of_the_models_type,
    merges_of_a_class_in_the_models_configuration,
]
"""Folders without a tokenizer.json."""

KINDS: list[Callable[[Path], None]] = [
    plain_bpe,
    bpe_with_listed_tokens,
    bpe_with_named_extra_tokens,
    bpe_with_older_files,
    bpe_cut_and_filled,
    bpe_that_splits_special_tokens,
    bpe_with_named_templates,
    bpe_with_template_files,
    byte_fallback,
    byte_fallback_with_bos,
    byte_fallback_that_says_bos,
    byte_fallback_that_says_no_bos,
    unigram,
    word_piece,
    *WITHOUT_JSON,
]


def assert_same(folder: Path) -> None:
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert ours.vocabulary == max(theirs.get_vocab().values()) + 1
    assert ours.added_tokens == theirs.get_added_vocab()
    assert theirs.eos_token_id in ours.eos_ids
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, special=special)
            assert ids == theirs.encode(text, add_special_tokens=special), text
            for skip in (False, True):
                told = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special=skip) == told
                stream = ours.stream(skip_special=skip)
                assert "".join([*map(stream.push, ids), stream.flush()]) == told
    for name, (messages, given) in CHATS.items():
        continued = given.get("continue_last", False)
        prompt = theirs.apply_chat_template(
            messages,
            tools=given.get("tools"),
            add_generation_prompt=not continued,
            continue_final_message=continued,
            return_dict=False,
            **given.get("template_arguments", {}),
        )
        assert ours.chat_prompt(messages, **given) == prompt, name


@pytest.mark.parametrize("write", KINDS, ids=lambda write: write.__name__)
def test_a_small_tokenizer_of_every_kind_does_what_transformers_does(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    assert_same(tmp_path)


@pytest.mark.parametrize("write", WITHOUT_JSON, ids=lambda write: write.__name__)
def test_numbers_that_transformers_refuses_in_config_json_change_nothing(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    before = Tokenizer.load(tmp_path)
    change(
        tmp_path, "config.json", max_position_embeddings=None, rms_norm_eps=1, time_step_limit=[0, 1], n_positions={}
    )
    after = Tokenizer.load(tmp_path)
    assert [after.encode(text) for text in TEXTS] == [before.encode(text) for text in TEXTS]
    assert after.chat_prompt([USER]) == before.chat_prompt([USER])
    assert after.eos_ids == before.eos_ids


def test_the_tokenizer_of_a_real_model_does_what_transformers_does() -> None:
    assert_same(resolve("smollm2-135m").path)


def test_no_argument_of_transformers_own_can_be_set_by_a_client() -> None:
    """A tokenizer that only transformers can read gets the client's template arguments as keywords."""
    functions = (PreTrainedTokenizerFast.apply_chat_template, render_jinja_template)
    names = {name for function in functions for name in inspect.signature(function).parameters}
    assert names - {"self", "kwargs", "documents"} <= RESERVED_ARGUMENTS
