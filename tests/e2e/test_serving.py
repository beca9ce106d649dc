"""One rank, the real model, other people's client."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from chorus.messages.engine import Sampling
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import eventually
from tests.support.margins import explain_difference, load_reference
from tests.support.server import ChorusServer

# In the answer no token has a near rival, which rounding might prefer.
QUESTION = [{"role": "user", "content": "Please tell me the capital of France."}]


def test_the_real_model_answers_paris(smollm2_server: ChorusServer) -> None:
    client = smollm2_server.client()
    answer = client.chat.completions.create(model="smollm2-135m", messages=QUESTION, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    assert "Paris" in (answer.choices[0].message.content or "")
    stream = client.chat.completions.create(
        model="default_model",
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content
    assert len(pieces) > 3


def test_usage_and_performance_are_told(smollm2_server: ChorusServer) -> None:
    answer = smollm2_server.complete("Once upon a time", max_tokens=5)
    assert answer["usage"]["completion_tokens"] == 5
    performance = answer["performance"]
    assert performance["generation_tokens_per_second"] > 0
    assert performance["time_to_first_token_seconds"] > 0


def test_sixteen_streams_equal_the_same_requests_alone(smollm2_server: ChorusServer, smollm2: Path) -> None:
    random = Random(5)
    tokenizer, reference = Tokenizer.load(smollm2), load_reference(smollm2)
    topics = ["the sea", "a small robot", "winter", "prime numbers", "bread", "old maps", "jazz", "bees"]
    bodies = [
        {
            "prompt": tokenizer.encode(f"Here is a short text about {random.choice(topics)}, number {i}:" + " so" * i),
            "max_tokens": random.randint(4, 24),
            "return_token_ids": True,
            **({"temperature": 0} if i % 2 else {"temperature": 1.0, "seed": i}),
        }
        for i in range(16)
    ]
    leaving = set(random.sample(range(16), 4))

    def run(index: int) -> list[int] | None:
        """The generated tokens, or None when the client went away in the middle."""
        with httpx.stream(
            "POST", f"{smollm2_server.url}/v1/completions", json={**bodies[index], "stream": True}, timeout=300
        ) as response:
            tokens: list[int] = []
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        tokens += choice.get("token_ids") or []
                if index in leaving and len(tokens) >= 2:
                    return None
            return tokens

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(run, range(16)))
    whole = [index for index in range(16) if index not in leaving]
    alone = {}
    leaving.clear()
    for index in whole:
        alone[index] = run(index)
    equal = 0
    for index in whole:
        body, lone, other = bodies[index], alone[index], together[index]
        assert lone is not None
        assert other is not None
        assert lone, "a stream without tokens proves nothing"
        sampling = Sampling(temperature=body["temperature"], seed=body.get("seed", 0))  # type: ignore[arg-type]
        assert explain_difference(reference, body["prompt"], lone, other, sampling) is None, body  # type: ignore[arg-type]
        equal += lone == other
    # Most tokens have no near rival.
    assert equal >= 0.5 * len(whole)
    eventually(lambda: smollm2_server.get("/health")["engine"]["running"] == 0, "the engine has nothing to do")


def test_a_long_prompt_never_stalls_running_streams(tiny_model: Path, tmp_path: Path) -> None:
    """Of any model: a tiny one, whose streams go on until the long prompt is answered."""
    log = tmp_path / "steps.jsonl"
    never_ends = {str(token): -100 for token in Tokenizer.load(tiny_model).eos_ids}
    answered = threading.Event()
    started = threading.Barrier(5)

    def stream(server: ChorusServer, index: int) -> None:
        body = {"prompt": f"Count: {index}", "max_tokens": 3000, "temperature": 1, "seed": index, "stream": True}
        body["logit_bias"] = never_ends
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            next(lines)
            started.wait(120)
            for _ in lines:
                if answered.is_set():
                    return
        raise AssertionError("the stream was over before the long prompt was answered")

    fixed = {"CHORUS_ENGINE__PREFILL_CHUNK": "128"}
    server = ChorusServer(tiny_model, ["--step-log", str(log)], tmp_path, fixed)
    with server, ThreadPoolExecutor(5) as pool:
        streams = [pool.submit(stream, server, index) for index in range(4)]
        started.wait(120)
        before = len(log.read_text().splitlines())
        server.complete([50] * 2000, max_tokens=2)
        answered.set()
        for future in streams:
            future.result(300)
    steps = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    chunks = [step for step in steps if step["kind"] == "prefill" and step["tokens"] > 100]
    assert sum(step["tokens"] for step in chunks) >= 1900
    first, last = chunks[0]["step"], chunks[-1]["step"]
    between = "".join(
        step["kind"][0] for step in steps if first <= step["step"] <= last and step["kind"] != "operations"
    )
    assert "pp" not in between
    assert between.count("d") >= 3


def bad_requests() -> list[Any]:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    return [
        pytest.param(b"{not json", 400, "", id="no JSON"),
        pytest.param({"messages": "hi"}, 400, "messages", id="wrong type"),
        pytest.param({"messages": []}, 400, "messages", id="empty messages"),
        pytest.param({**chat, "model": "gpt-9"}, 404, "model", id="unknown model"),
        pytest.param({"messages": [image]}, 400, "messages", id="image parts"),
        pytest.param({**chat, "max_tokens": 0}, 400, "max_tokens", id="max_tokens 0"),
        pytest.param({**chat, "max_tokens": -1}, 400, "max_tokens", id="max_tokens -1"),
        pytest.param({**chat, "temperature": 9}, 400, "temperature", id="temperature 9"),
        pytest.param({"messages": [{"role": "user", "content": "so " * 9000}]}, 400, "messages", id="over the context"),
        pytest.param(b'{"messages": "' + b"x" * 10_000_000 + b'"}', 413, "", id="10 MB body"),
        pytest.param({**chat, "stop": ["x"] * 100}, 400, "stop", id="stop list of 100"),
        pytest.param(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400, "", id="invalid UTF-8"),
    ]


@pytest.mark.parametrize(("body", "status", "field"), bad_requests())
def test_bad_input_is_told_by_name_and_harms_nothing(
    smollm2_server: ChorusServer, body: Any, status: int, field: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(
        f"{smollm2_server.url}/v1/chat/completions",
        content=content,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert field in (error["param"] or "")
    assert smollm2_server.get("/health/ready")["state"] == "ready"
