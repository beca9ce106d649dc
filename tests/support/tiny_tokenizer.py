"""Small tokenizers of the common kinds, made on the spot and always the same."""

from __future__ import annotations

import io
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "What is the capital of France? The capital of France is Paris.",
    "def add(left, right):\n    return left + right\n",
    "Many machines, one voice: a model larger than any machine, served by all of them together.",
    'system user assistant tool message content {"name": "weather", "city": "Paris"} 0123456789',
    "naïve café, Grüße aus Köln, ελληνικά, русский текст, 日本語の文字, 😀😃 👍🏽",
)

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
{{- raise_exception('Unknown role: ' + message.role) }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def write_tiny_tokenizer(folder: Path, vocabulary: int = 512) -> None:
    """A byte-level BPE with exactly `vocabulary` tokens and a ChatML template; every string round-trips."""
    smallest = len(SPECIAL_TOKENS) + 256
    if vocabulary < smallest:
        raise ValueError(f"a byte-level vocabulary has at least {smallest} tokens, not {vocabulary}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    spec = json.loads(tokenizer.to_str())
    _pad(spec["model"], vocabulary)
    _write(folder, spec, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def write_byte_fallback_tokenizer(folder: Path, vocabulary: int = 400) -> None:
    """Like Llama 2: text tokens with a mark for spaces, bytes for unknown characters, a space dropped in front."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text in TRAINING_TEXT if text.isascii()], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in special]
    _write(folder, spec, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def write_unigram_tokenizer(folder: Path) -> None:
    """Like T5: a unigram model whose decoder joins marked words."""
    words = [f"▁{word}" for word in _words() if len(word) > 2]
    pieces = [(piece, -float(rank)) for rank, piece in enumerate([*_UNIGRAM_SPECIAL, "▁", *words, *_letters()])]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(_UNIGRAM_SPECIAL))
    _write(folder, json.loads(tokenizer.to_str()), eos_token="</s>", unk_token="<unk>")


def write_word_piece_tokenizer(folder: Path) -> None:
    """Like BERT: words joined by spaces, endings glued on."""
    special = ["[UNK]", "[SEP]"]
    pieces = dict.fromkeys([*special, *_words(), *_letters(), *(f"##{letter}" for letter in _letters())])
    vocab = {piece: rank for rank, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    _write(folder, json.loads(tokenizer.to_str()), eos_token="[SEP]", unk_token="[UNK]")


def write_sentencepiece_model(folder: Path, kind: str = "bpe", **settings: Any) -> None:
    """Like folders from before tokenizer.json: sentencepiece's own tokenizer.model, `bpe` or `unigram`."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING_TEXT * 5),
        model_writer=model,
        model_type=kind,
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    _write_settings(folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **settings)


def write_vocabulary_and_merges(folder: Path, **settings: Any) -> None:
    """Like GPT-2: vocab.json and merges.txt, of which transformers makes the tokenizer."""
    write_tiny_tokenizer(folder)
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(spec["vocab"]), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in spec["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    _write_settings(folder, eos_token="<|im_end|>", pad_token="<|endoftext|>", **settings)


_UNIGRAM_SPECIAL = ("<unk>", "</s>")


def _words() -> list[str]:
    return sorted({word for text in TRAINING_TEXT for word in re.findall(r"\w+", text)})


def _letters() -> list[str]:
    return sorted({letter for text in TRAINING_TEXT for letter in text if not letter.isspace()})


def _pad(model: dict[str, Any], vocabulary: int) -> None:
    """A little text yields few merges: join known tokens in order until the vocabulary is full."""
    vocab: dict[str, int] = model["vocab"]
    parts = [token for token in vocab if token not in SPECIAL_TOKENS]
    for left, right in product(parts, parts):
        if len(vocab) == vocabulary:
            return
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            model["merges"].append([left, right])
    if len(vocab) != vocabulary:
        raise ValueError(f"cannot make {vocabulary} tokens from this text: ask for at most {len(vocab)}")


def _write(folder: Path, spec: dict[str, Any], **special_tokens: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    _write_settings(folder, tokenizer_class="PreTrainedTokenizerFast", **special_tokens)


def _write_settings(folder: Path, **settings: Any) -> None:
    config = {
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    } | settings
    text = json.dumps(config, ensure_ascii=False, indent=1, sort_keys=True)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
