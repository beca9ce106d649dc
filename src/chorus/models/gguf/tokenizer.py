"""Rebuilds a fast tokenizer from GGUF metadata: tokenizer.json, its configuration and the ids that end a turn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from chorus.models.errors import ModelError
from chorus.models.gguf.reader import GgufFile

_SPACE = "▁"
_LONGEST_TOKEN = 1024
"""Every way to cut each token is tried."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")


class _Kind(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Splitting:
    """How text is cut before byte-level BPE; `byte_level_regex` adds GPT-2's own cutting after these."""

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    byte_level_regex: bool = False
    compose: bool = False
    whole_words_first: bool = False
    """A word that is a token is taken as it is, even where the merges would not lead to it."""
    starts_with_bos: bool = False


_GPT2 = _Splitting(byte_level_regex=True)
_SINGLE_DIGITS = _Splitting(single_digits=True, byte_level_regex=True)
_LLAMA3_SPLITTING = _Splitting((_LLAMA3,), whole_words_first=True, starts_with_bos=True)
_QWEN2_SPLITTING = _Splitting((_QWEN2,), compose=True)
_PLAIN_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPLITTINGS = {
    "default": _Splitting((r"[\p{P}\$\+<=>\^~\|]+", _PLAIN_GPT2_PATTERN, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3_SPLITTING,
    "llama3": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "qwen2": _QWEN2_SPLITTING,
    "deepseek-r1-qwen": _QWEN2_SPLITTING,
    "tekken": _Splitting((_TEKKEN,), whole_words_first=True, starts_with_bos=True),
}


@dataclass(frozen=True)
class RebuiltTokenizer:
    """The tokenizer that a GGUF file describes, in Hugging Face's form."""

    tokenizer: Tokenizer
    config: dict[str, Any]
    """tokenizer_config.json"""
    special_ids: dict[str, Any]
    """bos, eos (all that end a turn) and pad ids, as config.json names them"""


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    kinds: list[int]

    def id_or_none(self, gguf: GgufFile, key: str) -> int | None:
        value = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            return None
        if not 0 <= value < len(self.tokens):
            raise ModelError(f"{gguf.path.name} says its {key} token is {value}, beyond its {len(self.tokens)} tokens.")
        return int(value)

    def ids(self) -> dict[str, int]:
        # Of two equal texts the first one counts; the other can never be written, only read.
        return {text: index for index, text in reversed(list(enumerate(self.tokens)))}


def rebuild_tokenizer(gguf: GgufFile, vocabulary_rows: int) -> RebuiltTokenizer:
    vocabulary = _read_vocabulary(gguf, vocabulary_rows)
    kind = gguf.require("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            tokenizer, starts_with_bos = _byte_level(gguf, vocabulary)
        elif kind == "llama":
            tokenizer, starts_with_bos = _sentencepiece(gguf, vocabulary), True
        else:
            raise ModelError(
                f"{gguf.path.name} has a tokenizer of kind {kind}, which cannot be rebuilt (supported: gpt2, llama); "
                "use the model's Hugging Face folder instead."
            )
    except ModelError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelError(f"{gguf.path.name} has a tokenizer that contradicts itself ({error}).") from error
    _mark_added(tokenizer, vocabulary)
    ends = {
        "bos": vocabulary.id_or_none(gguf, "bos"),
        "eos": vocabulary.id_or_none(gguf, "eos"),
    }
    adds = {
        "bos": bool(gguf.metadata.get("tokenizer.ggml.add_bos_token", starts_with_bos)) and ends["bos"] is not None,
        "eos": bool(gguf.metadata.get("tokenizer.ggml.add_eos_token", False)) and ends["eos"] is not None,
    }
    _wrap_with_ends(tokenizer, vocabulary, ends, adds)
    config = _tokenizer_config(gguf, vocabulary, ends, adds)
    return RebuiltTokenizer(tokenizer, config, _special_ids(gguf, vocabulary, ends))


def _read_vocabulary(gguf: GgufFile, rows: int) -> _Vocabulary:
    tokens = gguf.require("tokenizer.ggml.tokens")
    kinds = gguf.metadata.get("tokenizer.ggml.token_type", [int(_Kind.NORMAL)] * len(tokens))
    if len(kinds) != len(tokens):
        raise ModelError(f"{gguf.path.name} has {len(tokens)} tokens but {len(kinds)} token types; download it again.")
    if len(tokens) > rows:
        raise ModelError(
            f"{gguf.path.name} does not fit its own metadata: {len(tokens)} tokens, but token_embd.weight has {rows} "
            "rows; download it again."
        )
    return _Vocabulary(tokens, kinds)


def _byte_level(gguf: GgufFile, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = gguf.metadata.get("tokenizer.ggml.pre", "default")
    splitting = _SPLITTINGS.get(name)
    if splitting is None:
        raise ModelError(
            f"{gguf.path.name} uses pre-tokenizer {name}, which cannot be rebuilt (supported: "
            f"{', '.join(_SPLITTINGS)}); use the model's Hugging Face folder instead."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.require("tokenizer.ggml.merges")]
    if bad := [merge for merge in merges if len(merge) != 2]:
        raise ModelError(f"{gguf.path.name} has a merge of one part, {bad[0][0]!r}; download it again.")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids(), merges=merges, ignore_merges=splitting.whole_words_first))
    if splitting.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    prefix = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=splitting.byte_level_regex))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, splitting.starts_with_bos


def _sentencepiece(gguf: GgufFile, vocabulary: _Vocabulary) -> Tokenizer:
    scores = gguf.require("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise ModelError(
            f"{gguf.path.name} has {len(vocabulary.tokens)} tokens but {len(scores)} scores; download it again."
        )
    unknown = vocabulary.id_or_none(gguf, "unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids(),
            merges=_merges_from_scores(vocabulary, scores),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefix else spaces)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_from_scores(vocabulary: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours whose union scores best: each way to make a token, best tokens first."""
    if (longest := max(map(len, vocabulary.tokens), default=0)) > _LONGEST_TOKEN:
        raise ValueError(f"a token of {longest} characters")
    mergeable = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, scores, strict=True)
        if kind in (_Kind.NORMAL, _Kind.USER_DEFINED, _Kind.UNUSED)
    }
    merges = [
        (-score, order, token[:cut], token[cut:])
        for order, (token, score) in enumerate(mergeable.items())
        for cut in range(1, len(token))
        if token[:cut] in mergeable and token[cut:] in mergeable
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


def _mark_added(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Control tokens are found in text before any splitting, and left out when text is made for people."""
    control = [
        AddedToken(text, special=True, normalized=False)
        for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind in (_Kind.CONTROL, _Kind.UNKNOWN) and text
    ]
    own = [
        AddedToken(text, special=False, normalized=False)
        for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind == _Kind.USER_DEFINED and text
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(own)


def _wrap_with_ends(
    tokenizer: Tokenizer, vocabulary: _Vocabulary, ends: dict[str, int | None], adds: dict[str, bool]
) -> None:
    if not any(adds.values()):
        return
    text = {key: vocabulary.tokens[index] for key, index in ends.items() if index is not None}
    before, after = (text["bos"] if adds["bos"] else ""), (text["eos"] if adds["eos"] else "")

    def around(part: str, sequence: int) -> list[str]:
        return [f"{piece}:{sequence}" for piece in (before, part, after) if piece]

    used = [(text[key], ends[key]) for key in ("bos", "eos") if adds[key]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("$A", 0), pair=[*around("$A", 0), *around("$B", 1)], special_tokens=used
    )


def _tokenizer_config(
    gguf: GgufFile, vocabulary: _Vocabulary, ends: dict[str, int | None], adds: dict[str, bool]
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds["bos"],
        "add_eos_token": adds["eos"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(gguf.require(f"{gguf.architecture}.context_length")),
    }
    named = ends | {"unk": vocabulary.id_or_none(gguf, "unknown"), "pad": _padding(gguf, vocabulary)}
    config |= {f"{key}_token": vocabulary.tokens[index] for key, index in named.items() if index is not None}
    if template := gguf.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _padding(gguf: GgufFile, vocabulary: _Vocabulary) -> int | None:
    padding = vocabulary.id_or_none(gguf, "padding")
    return vocabulary.id_or_none(gguf, "eos") if padding is None else padding


def _special_ids(gguf: GgufFile, vocabulary: _Vocabulary, ends: dict[str, int | None]) -> dict[str, Any]:
    """All ids that end a turn: files often name only one, while the model's own template ends turns with another."""
    template = gguf.metadata.get("tokenizer.chat_template", "")
    named = [ends["eos"], vocabulary.id_or_none(gguf, "eot"), vocabulary.id_or_none(gguf, "eom")]
    ids = vocabulary.ids()
    known = [
        ids[text]
        for text in _END_OF_TURN
        if text in ids
        and vocabulary.kinds[ids[text]] == _Kind.CONTROL
        and (text in template or text == "<|endoftext|>")
    ]
    eos = list(dict.fromkeys(index for index in [*named, *known] if index is not None))
    special = {"bos_token_id": ends["bos"], "eos_token_id": eos or None, "pad_token_id": _padding(gguf, vocabulary)}
    return {key: value for key, value in special.items() if value is not None}
