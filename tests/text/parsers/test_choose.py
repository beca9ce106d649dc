from __future__ import annotations

import pytest

from chorus.text.parsers import FAMILIES, choose
from tests.support.tiny_tokenizer import CHAT_TEMPLATE

JSON_CALL = '{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}'
TEMPLATES = {
    "hermes": '{%- for tool_call in message.tool_calls %}<tool_call>\\n{"name": "' + JSON_CALL + "}\\n</tool_call>",
    "qwen3_coder": "{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + name + '>\\n' }}",
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n{{ '<|python_tag|>' + tool_call.name }}",
    "mistral": "{{ '[TOOL_CALLS][' }}{{ tool | tojson }}{{ ']' }}",
    "mistral_v11": "{{ '[TOOL_CALLS]' + tool.function.name + '[ARGS]' + arguments }}",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json\\n'",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="$NAME">',
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>",
    "glm": "<tool_call>{{ tc.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n</tool_call>",
    "longcat": "<longcat_tool_call>{{ name }}\n<longcat_arg_key>{{ k }}</longcat_arg_key>",
    "minimax": '<minimax:tool_call>\n<invoke name="{{ name }}">\n<parameter name="{{ k }}">',
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="{{ name }}">',
    "minicpm5": '<function name="{{ name }}"><param name="{{ k }}">{{ v }}</param></function>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}",
    "kimi_k3": '<|open|>message role="assistant"<|sep|>{{ content }}<|close|>message<|sep|>',
    "gemma4": "<|tool_call>call:{{ name }}{<tool_call|>",
    "function_gemma": "<start_function_call>call:{{ name }}",
    "pythonic": "<|tool_list_start|>{{ tools }}<|tool_list_end|>",
    "none": CHAT_TEMPLATE,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_shows_its_family(name: str) -> None:
    assert choose(TEMPLATES[name]).name == name


def test_every_family_can_be_chosen_by_its_names() -> None:
    assert set(TEMPLATES) == {family.name for family in FAMILIES}
    for family in FAMILIES:
        for name in (family.name, *family.aliases):
            assert choose(None, name).name == family.name


def test_a_given_name_beats_the_template() -> None:
    assert choose(TEMPLATES["hermes"], "glm").name == "glm"
    assert choose(TEMPLATES["hermes"], "none").name == "none"


def test_no_template_means_plain_text() -> None:
    assert choose(None).name == "none"
    assert not choose(None).thinks


def test_llama_32_is_known_by_its_headers() -> None:
    template = '<|start_header_id|>user<|end_header_id|>Respond with {"name": ..., "parameters": ...}'
    assert choose(template).name == "llama3"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'nosuch'.*deepseek.*hermes"):
        choose(None, "nosuch")


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        ("{{ '<think>\\n' }}", "<think>"),
        ("content.split('</think>')", "<think>"),
        ("[TOOL_CALLS] [THINK]", "[THINK]"),
        ("<longcat_think>", "<longcat_think>"),
        ("<|channel>thought", "<|channel>thought"),
        ("<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
    ],
)
def test_a_template_shows_how_a_model_thinks(template: str, opened: str) -> None:
    family = choose(template)
    assert family.reasoning is not None
    assert family.reasoning[0] == opened


def test_a_prompt_that_opens_the_reasoning_is_recognised() -> None:
    family = choose("<tool_call> <think>")
    assert family.opened_by("<|im_start|>assistant\n<think>\n")
    assert not family.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not choose("<tool_call>").opened_by("<think>")
