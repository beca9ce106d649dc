"""Chat templates that write history in the ways that are common, and models of no size that have them."""

from __future__ import annotations

import json
from pathlib import Path

from chorus.serving.prompt.tokenizer import ServedTokenizer
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, write_byte_fallback_tokenizer, write_tiny_tokenizer

# As SmolLM2 has it: a system message where none is sent.
SMOLLM2 = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# As Llama 3 has it: headers, texts that are trimmed, tools with the user's first message.
LLAMA = """\
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{{- '<|im_start|>system\n\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}
{{- '<|im_end|>' }}
{%- if tools %}{{ '<|im_start|>user\n\nFunctions: ' + tools | tojson + '\n\n' + rest[0].content | trim + '<|im_end|>' }}
{%- set rest = rest[1:] %}{% endif %}
{%- for message in rest %}
{{- '<|im_start|>' + message.role + '\n\n' }}
{%- if message.tool_calls %}{{ message.tool_calls[0].function | tojson }}
{%- else %}{{ message.content | trim }}{% endif %}
{{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"""

# As Qwen 3 has it: tools in the system message, reasoning only after the user's last question, and, where thinking is
# turned off, an empty thought that history does not have.
QWEN = """\
{%- if tools or messages[0].role == 'system' %}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}{{ '\n\n# Tools\n' + tools | tojson }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and loop.index0 > last.question %}
{{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- if enable_thinking is true %}{{ '<think>\n' }}{% endif %}{% endif %}"""

# As Llama 2 has it: nothing but a text around the messages, and one token before and after each turn.
INSTRUCTIONS = """\
{%- for message in messages %}
{%- if message.role == 'user' %}{{ bos_token + '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

TEMPLATES = {"chatml": CHAT_TEMPLATE, "smollm2": SMOLLM2, "llama": LLAMA, "qwen": QWEN}


def served(folder: Path, template: str, *, byte_fallback: bool = False) -> ServedTokenizer:
    (write_byte_fallback_tokenizer if byte_fallback else write_tiny_tokenizer)(folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": template}))
    return ServedTokenizer.load(folder)
