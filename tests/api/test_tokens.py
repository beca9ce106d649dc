from __future__ import annotations

from typing import Any

import httpx
import pytest

from chorus.text.tokenizer import Tokenizer

TEXT = "naïve 😀 <|im_end|>"


def test_text_to_tokens_and_back(http: httpx.Client, tokenizer: Tokenizer) -> None:
    answer = http.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == tokenizer.encode(TEXT)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 256
    assert answer["token_strs"][-1] == "<|im_end|>"
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": TEXT}


def test_messages_are_counted_as_a_chat_would(tool_http: httpx.Client, tool_model_path: Any) -> None:
    tokenizer = Tokenizer.load(tool_model_path)
    messages = [{"role": "user", "content": "hello"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    kwargs = {"enable_thinking": True}
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    answer = tool_http.post("/tokenize", json=body).json()
    assert answer["tokens"] == tokenizer.chat_prompt(messages, tools=tools, template_arguments=kwargs)
    assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [512]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ],
)
def test_a_wrong_field_is_named(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
