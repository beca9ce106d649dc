from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.text.errors import TemplateError, TextError, TokenizerError
from chorus.text.tokenizer import Tokenizer
from tests.support.architectures import ARCHITECTURES
from tests.support.tiny_tokenizer import (
    write_byte_fallback_tokenizer,
    write_sentencepiece_model,
    write_tiny_tokenizer,
)

HELLO = [{"role": "user", "content": "Hello"}]


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_string_round_trips_through_the_tiny_tokenizer(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special=False) == text


@pytest.mark.parametrize("vocabulary", [259, 512, 5000])
def test_the_tiny_tokenizer_has_exactly_the_size_asked_for(tmp_path: Path, vocabulary: int) -> None:
    write_tiny_tokenizer(tmp_path, vocabulary)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocabulary == vocabulary
    assert tokenizer.decode(tokenizer.encode("Paris, 日本 😀")) == "Paris, 日本 😀"


def test_the_tiny_tokenizer_is_always_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tiny_tokenizer(tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_vocabulary_with_a_gap_reaches_to_its_largest_id(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    vocab[max(vocab, key=vocab.__getitem__)] = 700
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert Tokenizer.load(tmp_path).vocabulary == 701


def test_end_tokens_are_gathered_from_every_file(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    assert Tokenizer.load(tmp_path).eos_ids == {2}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "eos_token_id": 7, "text_config": {"eos_token_id": [8, null]}}'
    )
    assert Tokenizer.load(tmp_path).eos_ids == {0, 2, 7, 8}


def test_a_damaged_generation_config_is_named(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"generation_config\.json"):
        Tokenizer.load(tmp_path)


def test_clean_up_of_spaces_is_off_whatever_the_folder_says(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(
        tmp_path,
        clean_up_tokenization_spaces=True,
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
    )
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a , b .")) == "a , b ."


def spoil(folder: Path, kind: str) -> None:
    if kind == "no tokenizer file":
        (folder / "tokenizer.json").unlink()
    elif kind == "cut off":
        text = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    elif kind == "not a tokenizer":
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    elif kind == "damaged settings":
        (folder / "tokenizer_config.json").write_text("[")
    elif kind == "empty folder":
        for file in folder.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    "kind", ["no tokenizer file", "cut off", "not a tokenizer", "damaged settings", "empty folder"]
)
def test_a_broken_folder_gives_one_line_with_the_folder_and_the_remedy(tmp_path: Path, kind: str) -> None:
    write_tiny_tokenizer(tmp_path)
    spoil(tmp_path, kind)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "import or pull the model again" in message
    assert "\n" not in message


def test_a_missing_folder_is_named_and_never_looked_up_on_a_hub(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="is not a model folder"):
        Tokenizer.load(tmp_path / "organisation" / "model")


def test_code_in_the_model_folder_is_not_run_unless_allowed(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "custom.py").write_text("raise SystemExit('this code was run')\n")
    change_config(tmp_path, tokenizer_class="Custom", auto_map={"AutoTokenizer": [None, "custom.Custom"]})
    assert Tokenizer.load(tmp_path).encode("<|im_end|>") == [2]
    with pytest.raises(SystemExit, match="this code was run"):
        Tokenizer.load(tmp_path, trust_remote_code=True)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="--trust-remote-code"):
        Tokenizer.load(tmp_path)


def test_what_config_json_says_of_the_model_is_nothing_to_its_tokenizer(tmp_path: Path) -> None:
    """transformers, asked for the tokenizer, refuses this folder for what it thinks of the model."""
    write_tiny_tokenizer(tmp_path)
    config = {"model_type": "llama", "max_position_embeddings": None, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).eos_ids == {0, 2}


@pytest.mark.parametrize("write", [write_tiny_tokenizer, write_sentencepiece_model], ids=["json", "sentencepiece"])
def test_a_tokenizer_loads_beside_the_configuration_of_every_architecture(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    change_config(tmp_path, tokenizer_class="LlamaTokenizer")
    for config in ARCHITECTURES.values():
        odd = config | {"max_position_embeddings": None, "time_step_limit": [0, 100], "rope_theta": 10000}
        (tmp_path / "config.json").write_text(json.dumps(odd))
        assert Tokenizer.load(tmp_path).eos_ids, config["model_type"]


def test_a_chat_template_kept_in_a_file_for_pictures_is_found(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, chat_template=None)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ messages[0].content }}!"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.chat_prompt(HELLO)) == "Hello!"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set n = namespace() %}{% set n._hidden = 1 %}",
        "{{ namespace(__class__=1) }}",
        "{{ dict.mro() }}",
        "{% if %}",
    ],
)
def test_a_template_stays_in_its_sandbox(tmp_path: Path, template: str) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, chat_template=template)
    with pytest.raises(TemplateError, match="the chat template refused"):
        Tokenizer.load(tmp_path).chat_prompt(HELLO)


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": ["a"]},
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": {"1": {"content": 7}}},
        {"eos_token": {"text": "</s>"}},
        {"extra_special_tokens": [7]},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": 7},
    ],
    ids=str,
)
def test_settings_of_another_shape_give_one_line_with_the_folder_and_the_remedy(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, **settings)
    with pytest.raises(TokenizerError, match="import or pull the model again") as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_lone_surrogate_is_the_clients_fault(byte_level: Tokenizer) -> None:
    with pytest.raises(TextError, match="character 3"):
        byte_level.encode("abc\ud800")


def test_a_chat_is_rendered_by_the_template(byte_level: Tokenizer) -> None:
    ids = byte_level.chat_prompt(HELLO)
    assert byte_level.decode(ids, skip_special=False) == ("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_can_continue_the_last_message(byte_level: Tokenizer) -> None:
    ids = byte_level.chat_prompt([*HELLO, {"role": "assistant", "content": "The cap"}], continue_last=True)
    assert byte_level.decode(ids, skip_special=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nThe cap"
    )


def test_tools_reach_the_template(byte_level: Tokenizer) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    text = byte_level.decode(byte_level.chat_prompt(HELLO, tools=[tool]))
    assert json.dumps(tool) in text


def test_a_template_that_writes_bos_gets_only_one(tmp_path: Path) -> None:
    write_byte_fallback_tokenizer(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    change_config(tmp_path, chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("Hello").count(1) == 1
    assert tokenizer.encode("Hello", special=False).count(1) == 0
    assert tokenizer.chat_prompt(HELLO).count(1) == 1


def test_the_templates_own_complaint_reaches_the_client(byte_level: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="Unknown role: robot"):
        byte_level.chat_prompt([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "content": "\ud800"}], ["text"]],
)
def test_messages_that_the_template_cannot_render_are_a_client_error(
    byte_level: Tokenizer, messages: list[dict[str, Any]]
) -> None:
    with pytest.raises(TemplateError):
        byte_level.chat_prompt(messages)


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, chat_template="{{ 'deep' if enable_thinking else 'quick' }}")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.chat_prompt(HELLO, template_arguments={"enable_thinking": True})) == "deep"
    assert tokenizer.decode(tokenizer.chat_prompt(HELLO)) == "quick"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "conversations", "add_generation_prompt"])
def test_template_arguments_cannot_take_over_the_call(byte_level: Tokenizer, name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        byte_level.chat_prompt(HELLO, template_arguments={name: "{{ 1 }}"})


def add_tokens(folder: Path, *tokens: dict[str, Any]) -> None:
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec["added_tokens"] += [{"id": number, **flags, **token} for number, token in enumerate(tokens, start=512)]
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")


def test_a_text_is_cut_before_the_last_token_that_nothing_around_it_changes(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    add_tokens(tmp_path, {"content": "<left>", "lstrip": True}, {"content": "x<y>"}, {"content": "<y>"})
    add = {"chat_template": "<|im_start|><left>x<y><y>"}
    change_config(tmp_path, **add)
    tokenizer = Tokenizer.load(tmp_path)
    text = "a <|im_start|>b <left>c x<y> <y>"
    start = tokenizer.seam_before(text, len(text))
    assert text[start:].startswith("x<y>")
    assert tokenizer.seam_before(text, start + 1) == text.index("<|im_start|>")
    assert tokenizer.seam_before(text, 5) == -1
    parts = tokenizer.encode_parts([text[:start], text[start:]])
    assert [*parts[0], *parts[1]] == tokenizer.encode(text, special=False)


def test_where_special_tokens_are_read_as_text_nothing_can_be_cut(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, split_special_tokens=True)
    assert Tokenizer.load(tmp_path).seam_before("<|im_start|>user", 12) == -1


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    change_config(tmp_path, chat_template=None)
    tokenizer = Tokenizer.load(tmp_path)
    assert not tokenizer.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.chat_prompt(HELLO)


LOAD_ALONE = """
import socket, sys
from pathlib import Path
def refuse(*arguments, **options):
    raise SystemExit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
import chorus.text.tokenizer
tokenizer = chorus.text.tokenizer.Tokenizer.load(Path(sys.argv[1]))
tokenizer.chat_prompt([{"role": "user", "content": "Hello" * 5000}])
print(sorted({"mlx", "mlx_lm", "torch", "transformers"} & set(sys.modules)))
"""


def test_a_tokenizer_loads_without_mlx_or_transformers_and_without_the_network(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALONE, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert done.stderr == ""
