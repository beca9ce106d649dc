"""The template and the settings of a tokenizer come with the model: whatever they hold, a prompt or one clear error."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.text.chat_template import ChatTemplates
from chorus.text.errors import TemplateError, TextError, TokenizerError
from chorus.text.tokenizer import Tokenizer
from tests.fuzz.foreign import values
from tests.support.tiny_tokenizer import write_tiny_tokenizer

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {}}}]},
]

words = st.sampled_from(
    (
        *(
            "{{ ",
            " }}",
            "{% ",
            " %}",
            "{%- endfor %}",
            "{% endif %}",
            "{% endmacro %}",
            "{# ",
            " #}",
            "messages",
            "message",
            "tools",
        ),
        *(
            "for m in messages",
            "for x in range(5)",
            "if ",
            "else",
            "set x = ",
            "macro f()",
            "f()",
            "x",
            "m",
            ".",
            ".content",
            "[0]",
            "['role']",
        ),
        *(
            " | tojson",
            " | length",
            " | join",
            " | int",
            " | upper",
            " | nothing",
            " + ",
            " * ",
            " ~ ",
            " / 0",
            " % ",
            " == ",
            "1",
            "0",
            "'a'",
        ),
        *(
            "none",
            "true",
            "raise_exception('no')",
            "strftime_now('%Y')",
            "strftime_now(x)",
            "loop.index",
            "namespace(x=1)",
            "x.y = 1",
            "cycler",
        ),
        *(
            "''.__class__",
            ".mro()",
            "__init__",
            "self",
            "lipsum",
            "include 'x'",
            "import 'x' as y",
            "extends 'x'",
            "break",
            "continue",
            "é",
            "\0",
        ),
        *("{% generation %}", "{% endgeneration %}", "<|im_start|>", "\n"),
    )
)
templates = st.lists(words, max_size=14).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(path, 512)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def use(tokenizer: Tokenizer, template: str) -> None:
    tokenizer._tokenizer._templates = ChatTemplates({"default": template}, {})


def prompted(tokenizer: Tokenizer, template: str, arguments: dict[str, Any] | None = None) -> None:
    use(tokenizer, template)
    with suppress(TextError):
        assert all(isinstance(token, int) for token in tokenizer.chat_prompt(MESSAGES, template_arguments=arguments))


@given(template=templates)
def test_a_template_gives_a_prompt_or_is_refused(tokenizer: Tokenizer, template: str) -> None:
    prompted(tokenizer, template)


@given(
    arguments=st.dictionaries(
        st.sampled_from(["x", "enable_thinking", "tools", "messages", "tokenize", "self", "a b"]), values
    )
)
def test_arguments_of_a_client_give_a_prompt_or_are_refused(tokenizer: Tokenizer, arguments: dict[str, Any]) -> None:
    prompted(tokenizer, "{{ x }}{% for m in messages %}{{ m.content }}{{ x | tojson }}{% endfor %}", arguments)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10**9) | list }}",
        "{{ 1 // 0 }}",
        "{{ messages[99].content }}",
        "{{ messages | tojson(indent=messages) }}",
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
        "{% for a in messages %}" * 30,
        "{{ '\\ud800' }}",
    ],
)
def test_a_template_that_does_what_it_must_not_is_refused(tokenizer: Tokenizer, template: str) -> None:
    use(tokenizer, template)
    with pytest.raises((TemplateError, TextError)):
        tokenizer.chat_prompt(MESSAGES)


@shared_folder
@given(
    name=st.sampled_from(
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "special_tokens_map.json"]
    ),
    value=values
    | st.dictionaries(
        st.sampled_from(["eos_token_id", "chat_template", "added_tokens", "model", "tokenizer_class"]), values
    ),
)
def test_a_tokenizer_of_any_files_is_loaded_or_refused(tmp_path: Path, folder: Path, name: str, value: Any) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(json.dumps(value))
    with suppress(TokenizerError):
        Tokenizer.load(tmp_path)
    (tmp_path / name).unlink()
