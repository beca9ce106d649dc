from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from chorus.models import ModelError
from chorus.models.gguf.reader import GgufFile, read_gguf
from chorus.models.gguf.tokenizer import RebuiltTokenizer, rebuild_tokenizer
from tests.models.gguf_files import CONTROL, SPECIAL, TEMPLATE, TinyModel, put_field, write_tiny_gguf

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it's 1234 days since we've met; don't you think so?",
    "def add(a, b):\n    return a + b  # 42\n\n\n\tprint(add(1, 23456))",
    "Zażółć gęślą jaźń. 日本語のテキスト。 Привет, мир! naïve café 🎉👩‍👩‍👧 ½ ²",
    "hello hello hello help shell hell held",
] * 4
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(CORPUS)


def read_fields(path: Path, fields: dict[str, Any]) -> GgufFile:
    """A GGUF that holds a tokenizer and little else."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in ({"llama.context_length": 64} | fields).items():
        put_field(writer, key, value)
    writer.add_tensor("nothing", np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def trained_bpe(pre_tokenizer: Any) -> Tokenizer:
    original = Tokenizer(models.BPE())
    original.pre_tokenizer = pre_tokenizer
    original.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    original.train_from_iterator(CORPUS, trainer)
    return original


def byte_level_fields(original: Tokenizer, pre: str) -> dict[str, Any]:
    described = json.loads(original.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in described["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, RebuiltTokenizer]:
    digits = pre_tokenizers.Digits(individual_digits=True)
    original = trained_bpe(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    path = tmp_path_factory.mktemp("smollm") / "t.gguf"
    return original, rebuild_tokenizer(read_fields(path, byte_level_fields(original, "smollm")), 500)


@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_a_rebuilt_byte_level_tokenizer_gives_the_original_ids_and_text(
    smollm: tuple[Tokenizer, RebuiltTokenizer], text: str
) -> None:
    original, rebuilt = smollm
    ids = rebuilt.tokenizer.encode(text).ids
    assert ids == original.encode(text).ids
    assert rebuilt.tokenizer.decode(ids) == text


def test_special_tokens_are_found_in_text_and_left_out_for_people(
    smollm: tuple[Tokenizer, RebuiltTokenizer],
) -> None:
    tokenizer = smollm[1].tokenizer
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a 1234 it's", ["a", "Ġ", "1", "2", "3", "4", "Ġit", "'s"]),
        ("gpt-2", "a 1234 it's", ["a", "Ġ1234", "Ġit", "'s"]),
        ("llama-bpe", "a 1234 IT'S", ["a", "Ġ", "123", "4", "ĠIT", "'S"]),
        ("qwen2", "a 1234 IT'S", ["a", "Ġ", "1", "2", "3", "4", "ĠIT", "'S"]),
        ("qwen2", "(hello)\n\nx  y", ["(hello", ")ĊĊ", "x", "Ġ", "Ġy"]),
        ("tekken", "someWord 12", ["some", "Word", "Ġ", "1", "2"]),
        ("default", "a=b 12345", ["a", "=", "b", "Ġ", "123", "45"]),
    ],
)
def test_text_is_cut_as_the_model_was_taught(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1, pre=pre))
    rebuilt = rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999)
    cut = rebuilt.tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == pieces


def test_an_unknown_pre_tokenizer_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1, pre="martian"))
    with pytest.raises(ModelError, match=r"pre-tokenizer martian.*supported: default, gpt-2, smollm"):
        rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "kind bert.*supported: gpt2, llama"),
        ({"tokenizer.ggml.merges": ["h q q"]}, "contradicts itself"),
        ({"tokenizer.ggml.merges": ["hello"]}, "merge of one part, 'hello'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token types"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos token is 99999"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "1 scores"),
    ],
)
def test_a_tokenizer_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1, metadata=fields))
    with pytest.raises(ModelError, match=message) as caught:
        rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999)
    assert "\n" not in str(caught.value)


def saved(folder: Path, rebuilt: RebuiltTokenizer) -> Any:
    rebuilt.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(rebuilt.config))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("asked", "pre", "starts"), [(True, "gpt-2", True), (None, "llama-bpe", True), (None, "gpt-2", False)]
)
def test_the_first_token_is_added_where_the_file_or_its_kind_asks_for_it(
    tmp_path: Path, asked: bool | None, pre: str, starts: bool
) -> None:
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1, pre=pre, metadata={"tokenizer.ggml.add_bos_token": asked}))
    rebuilt = rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999)
    assert (rebuilt.tokenizer.encode("hello").ids[0] == 1) is starts
    loaded = saved(tmp_path, rebuilt)
    assert (loaded("hello")["input_ids"][0] == 1) is starts
    assert loaded("hello", add_special_tokens=False)["input_ids"][0] != 1


def test_transformers_loads_it_with_its_template_and_special_tokens(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1))
    loaded = saved(tmp_path, rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999))
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert loaded.chat_template == TEMPLATE
    assert loaded.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == (
        "<|im_start|>hello<|im_end|>"
    )


def test_every_token_that_ends_a_turn_is_an_end_id(tmp_path: Path) -> None:
    ends_with_text = {"tokenizer.ggml.eos_token_id": 0}
    write_tiny_gguf(tmp_path / "t.gguf", TinyModel(layers=1, metadata=ends_with_text))
    rebuilt = rebuild_tokenizer(read_gguf(tmp_path / "t.gguf"), 999)
    assert rebuilt.special_ids == {"bos_token_id": 1, "eos_token_id": [0, 2], "pad_token_id": 0}


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> tuple[sentencepiece.SentencePieceProcessor, RebuiltTokenizer]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=450,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(original.vocab_size())
    kinds = [
        2 if original.is_unknown(i) else CONTROL if original.is_control(i) else 6 if original.is_byte(i) else 1
        for i in ids
    ]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [original.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
        "tokenizer.ggml.unknown_token_id": original.unk_id(),
    }
    path = tmp_path_factory.mktemp("spm") / "t.gguf"
    return original, rebuild_tokenizer(read_fields(path, fields), 1000)


# SentencePiece keeps "▁" for itself and stops at NUL; it does not look for control tokens such as <s> in text.
SPM_TEXT = TEXT.filter(lambda text: not set("▁\0<") & set(text))


@given(text=SPM_TEXT)
@settings(max_examples=150, deadline=None)
def test_a_rebuilt_sentencepiece_tokenizer_gives_the_original_ids_and_text(
    spm: tuple[sentencepiece.SentencePieceProcessor, RebuiltTokenizer], text: str
) -> None:
    original, rebuilt = spm
    ids = rebuilt.tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == original.encode(text)
    assert rebuilt.tokenizer.decode(ids) == text


def test_sentencepiece_text_starts_with_its_first_token(
    spm: tuple[sentencepiece.SentencePieceProcessor, RebuiltTokenizer],
) -> None:
    original, rebuilt = spm
    assert rebuilt.tokenizer.encode("hello").ids == [original.bos_id(), *original.encode("hello")]
