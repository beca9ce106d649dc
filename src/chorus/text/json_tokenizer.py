"""A tokenizer read from tokenizer.json and the settings beside it: importing transformers takes a second.

The ids are those of tokenizer.json. The classes of transformers (LlamaTokenizer, GemmaTokenizer, Qwen2Tokenizer, …)
take vocabulary, merges and post-processor from that file too, but put a normalizer and a splitting of their own in
place of the file's. For the folders that these classes were written after, both come to the same; where they do not,
the file is what the model's makers tested: transformers itself keeps a list of models for which the named class is
wrong, and a Llama 2 prompt that begins with `<s>` gets another first word from the class than from the file or from
Meta's own code.

Whether a text gets a BOS or an EOS is said by the file's post-processor alone: transformers, too, passes over
`add_bos_token` and `add_eos_token` where there is a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from chorus.text.chat_template import ChatTemplates, read_templates
from chorus.text.special_tokens import read_special_tokens

FILE = "tokenizer.json"


class JsonTokenizer:
    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.backend: Tokenizer = Tokenizer.from_file(str(folder / FILE))
        # Some files were saved amid training, with a length to cut or fill to; how long a prompt may be is not theirs.
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        special = read_special_tokens(folder, settings)
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        self.backend.add_tokens(list(special.missing_from(known)))
        ids = (
            self.backend.token_to_id(text) for text in {*special.texts.values(), *(t.content for t in special.extra)}
        )
        self.special_ids = frozenset(token for token in ids if token is not None)
        eos = special.texts.get("eos_token")
        self.eos_id = None if eos is None else self.backend.token_to_id(eos)
        self._special_texts = tuple(special.texts.values())
        self._templates = ChatTemplates(read_templates(folder, settings), special.texts)

    @property
    def templates(self) -> Mapping[str, str]:
        return self._templates.sources

    @property
    def plain_backend(self) -> Tokenizer:
        return self.backend

    def encode(self, text: str, special: bool) -> list[int]:
        # A batch of one, because for batches the interpreter is let go while the text is split.
        return self.backend.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special)

    def vocabulary(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    def added_tokens(self) -> dict[str, int]:
        return {token.content: number for number, token in sorted(self.backend.get_added_tokens_decoder().items())}

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
        continue_last: bool,
        for_answer: bool,
    ) -> str:
        return self._templates.render(
            messages, tools=tools, arguments=arguments, continue_last=continue_last, for_answer=for_answer
        )

    def seams(self) -> tuple[str, ...]:
        """Those of the added tokens in the templates before which a text may be cut: each side is encoded alike alone.

        Not those that are looked for in a changed text, or that take in or ask for something to their left; nor those
        that another added token could share a letter with. Tokens that no template writes are left out, since some
        vocabularies have thousands.
        """
        if self.backend.encode_special_tokens:
            return ()
        added = self.backend.get_added_tokens_decoder().values()
        written = "\n".join([*self.templates.values(), *self._special_texts])
        texts = [token.content for token in added]
        endings = {text[start:] for text in texts for start in range(1, len(text))}
        return tuple(
            token.content
            for token in added
            if token.content in written
            and not (token.normalized or token.single_word or token.lstrip)
            and endings.isdisjoint(token.content[:end] for end in range(1, len(token.content)))
            and not any(token.content in text and token.content != text for text in texts)
        )

    def encode_parts(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]
