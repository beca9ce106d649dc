"""One rank, one backend process, a client that knows only the table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.localai.process import Backend
from tests.localai.table import message, state_name

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps") / "steps.jsonl"


def load_tiny(backend: Backend, tiny_model: Path, steps: Path) -> None:
    engine = json.dumps({"step_log": str(steps)})
    backend.load(tiny_model, "tool_parser:hermes", "no_such_option:1", EngineArgs=engine)


@pytest.fixture
def loaded(backend: Backend, tiny_model: Path, steps: Path) -> Backend:
    """Loaded once: while it serves, the same request again changes nothing."""
    load_tiny(backend, tiny_model, steps)
    return backend


def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def status(backend: Backend) -> str:
    return state_name(backend.client.Status().state)


def test_nothing_is_served_before_a_model_is_loaded(backend: Backend) -> None:
    backend.client.Free()
    assert status(backend) == "UNINITIALIZED"
    client = backend.client
    calls = [
        lambda: client.Predict(Prompt="Hi"),
        lambda: list(client.PredictStream(Prompt="Hi")),
        lambda: client.TokenizeString(Prompt="Hi"),
        lambda: client.Detokenize(tokens=[5]),
        lambda: client.Embedding(Embeddings="Hi"),
    ]
    assert {code_of(call)[0] for call in calls} == {grpc.StatusCode.FAILED_PRECONDITION}


def test_health_and_status_answer_while_a_model_loads(backend: Backend, tiny_model: Path, steps: Path) -> None:
    backend.client.Free()
    done = threading.Event()
    states = set()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(load_tiny, backend, tiny_model, steps)
        load.add_done_callback(lambda _: done.set())
        while not done.wait(0.05):
            assert backend.client.Health(timeout=120).message == b"OK"
            states.add(status(backend))
        load.result()
    assert "BUSY" in states
    assert status(backend) == "READY"


def test_loading_the_same_again_changes_nothing(loaded: Backend, tiny_model: Path, steps: Path) -> None:
    before = {child.pid for child in loaded.children()}
    load_tiny(loaded, tiny_model, steps)
    assert {child.pid for child in loaded.children()} == before


def test_an_unknown_option_is_ignored_with_a_log_line(loaded: Backend) -> None:
    assert "no_such_option is ignored" in loaded.log


def test_free_ends_a_load_and_the_model_can_be_loaded_again(loaded: Backend, tiny_model: Path, steps: Path) -> None:
    text, backend = loaded.text(), loaded
    gone = threading.Event()

    def look_on() -> None:
        while not gone.is_set():
            backend.client.Status(timeout=120)

    with ThreadPoolExecutor(4) as pool:
        watchers = [pool.submit(look_on) for _ in range(4)]
        assert backend.client.Free().success
        gone.set()
        for watcher in watchers:
            watcher.result()
    assert backend.children() == []
    assert code_of(lambda: backend.client.Predict(Prompt="Hi"))[0] is grpc.StatusCode.FAILED_PRECONDITION
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(backend.client.LoadModel, Model=str(tiny_model))
        while status(backend) != "BUSY":
            assert not load.done()
        assert backend.client.Free().success
        assert "freed" in load.result().message
    assert backend.children() == []
    assert status(backend) == "UNINITIALIZED"
    load_tiny(backend, tiny_model, steps)
    assert backend.text() == text


def test_a_stream_gives_the_whole_answer_with_usage_so_far(loaded: Backend) -> None:
    request = {"Prompt": "The quick brown fox", "Tokens": 24, "Temperature": 1.0, "Seed": 11}
    whole = loaded.client.Predict(**request)
    chunks = list(loaded.client.PredictStream(**request))
    assert b"".join(chunk.message for chunk in chunks) == whole.message
    counts = [chunk.tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == whole.tokens == 24
    assert {chunk.prompt_tokens for chunk in chunks} == {whole.prompt_tokens}
    assert all("\ufffd" not in chunk.message.decode() for chunk in chunks)
    assert whole.timing_token_generation > 0
    assert whole.timing_prompt_processing > 0


def test_temperature_zero_is_greedy_and_a_seed_gives_the_same_again(loaded: Backend) -> None:
    assert len({loaded.text() for _ in range(3)}) == 1
    assert len({loaded.text(Temperature=1.5, Seed=5) for _ in range(3)}) == 1
    assert len({loaded.text(Temperature=1.5) for _ in range(3)}) > 1


def test_a_request_for_another_model_is_told_so(loaded: Backend, tiny_model: Path) -> None:
    assert loaded.client.Predict(Prompt="The", Tokens=1, ModelIdentity=str(tiny_model)).tokens == 1
    code, detail = code_of(lambda: loaded.client.Predict(Prompt="The", ModelIdentity="other"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "model identity mismatch" in detail
    assert code_of(lambda: list(loaded.client.PredictStream(Prompt="The", ModelIdentity="other")))[0] is code


def test_eight_requests_at_once_run_in_one_batch(loaded: Backend, steps: Path) -> None:
    prompts = [f"Number {number} of many" for number in range(8)]

    def ask(prompt: str) -> str:
        return loaded.text(prompt, Tokens=40, IgnoreEOS=True)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts))
    assert max(len(json.loads(line)["sequences"]) for line in steps.read_text().splitlines()) > 1
    assert together == [ask(prompt) for prompt in prompts]


def test_a_cancelled_stream_stops_in_the_engine(loaded: Backend) -> None:
    stream = loaded.client.PredictStream(Prompt="on and on", IgnoreEOS=True)
    first = next(stream)
    assert first.tokens >= 1
    stream.cancel()
    # What was left of the context would take seconds; the next answers come from an engine that is free.
    assert loaded.client.Predict(Prompt="The", Tokens=4, IgnoreEOS=True, timeout=120).tokens == 4


def test_stop_strings_end_the_answer_and_are_not_shown(loaded: Backend) -> None:
    whole = loaded.text(Tokens=24, IgnoreEOS=True, Temperature=1.0, Seed=11)
    stop = whole[5:7]
    chunks = list(
        loaded.client.PredictStream(
            Prompt="The quick brown fox", Tokens=24, Temperature=1.0, Seed=11, IgnoreEOS=True, StopPrompts=[stop, ""]
        )
    )
    assert b"".join(chunk.message for chunk in chunks).decode() == whole[: whole.index(stop)]


def test_the_last_logprobs_hold_all_tokens(loaded: Backend) -> None:
    request = {"Prompt": "The quick", "Tokens": 6, "Logprobs": 1, "TopLogprobs": 3, "IgnoreEOS": True}
    whole = json.loads(loaded.client.Predict(**request).logprobs)["content"]
    chunks = [chunk for chunk in loaded.client.PredictStream(**request) if chunk.logprobs]
    assert json.loads(chunks[-1].logprobs)["content"] == whole
    assert len(whole) == 6
    for entry in whole:
        assert entry.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert entry["logprob"] <= 0
        best = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert entry["id"] == entry["top_logprobs"][0]["id"]
    assert loaded.client.Predict(Prompt="The quick", Tokens=2).logprobs == b""


def test_a_grammar_is_kept_to(loaded: Backend) -> None:
    reply = loaded.client.Predict(Prompt="Yes or no?", Tokens=20, Grammar='root ::= "yes" | "no"', Temperature=1.0)
    assert reply.message in (b"yes", b"no")
    code, detail = code_of(lambda: loaded.client.Predict(Prompt="Hi", Grammar="root ::= ("))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "Grammar" in detail


def test_a_forced_tool_call_comes_out_as_a_call(loaded: Backend) -> None:
    request = {
        "Messages": [message("user", "How is the weather in Paris?")],
        "UseTokenizerTemplate": True,
        "Tools": json.dumps([WEATHER]),
        "ToolChoice": '{"type": "function", "function": {"name": "weather"}}',
        "Tokens": 400,
        "Temperature": 1.0,
        "Seed": 1,
    }
    (delta,) = loaded.client.Predict(**request).chat_deltas
    call = delta.tool_calls[0]
    assert call.name == "weather"
    assert call.id
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    assert "tool_call" not in delta.content
    deltas = [delta for chunk in loaded.client.PredictStream(**request) for delta in chunk.chat_deltas]
    parts = [part for delta in deltas for part in delta.tool_calls if part.index == 0]
    assert "".join(part.arguments for part in parts) == call.arguments
    assert not any("tool_call" in delta.content for delta in deltas)


def test_a_plain_prompt_is_left_for_localai_to_read(loaded: Backend) -> None:
    assert len(loaded.client.Predict(Prompt="The", Tokens=4).chat_deltas) == 0
    chat = loaded.client.Predict(Messages=[message("user", "Hi")], UseTokenizerTemplate=True, Tokens=4)
    assert chat.chat_deltas[0].content == chat.message.decode()


def test_text_becomes_tokens_and_text_again(loaded: Backend) -> None:
    text = "What is the capital of France? naïve café 😀"
    tokens = loaded.client.TokenizeString(Prompt=text)
    assert tokens.length == len(tokens.tokens) > 0
    assert loaded.client.Detokenize(tokens=tokens.tokens).content == text
    code, detail = code_of(lambda: loaded.client.Detokenize(tokens=[99999]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "99999" in detail
    rendered = loaded.client.TokenizeString(Messages=[message("user", "Hi")], UseTokenizerTemplate=True)
    assert rendered.length > loaded.client.TokenizeString(Prompt="Hi").length


def test_a_model_file_decides_whether_its_prompts_are_kept(loaded: Backend, tiny_model: Path) -> None:
    prompt = "A fox, a dog and a very long story of how they came to live together"

    def computed(**fields: Any) -> int:
        reply = loaded.client.Predict(Prompt=prompt, Tokens=2, ModelIdentity=str(tiny_model), **fields)
        processed: int = loaded.client.GetMetrics().prompt_tokens_processed
        assert processed <= reply.prompt_tokens
        return processed

    first, again = computed(PromptCacheAll=False), computed(PromptCacheAll=False, PromptCachePath="/cache/file")
    assert first == again == loaded.client.TokenizeString(Prompt=prompt).length
    assert computed(PromptCacheAll=True, PromptCacheRO=True) == first
    assert computed(PromptCacheAll=True) == first
    assert computed(PromptCacheAll=True, PromptCachePath="/cache/file") < first
    assert loaded.log.count("prompt_cache_path is ignored") == 1


def test_status_and_metrics_tell_memory_and_speed(loaded: Backend) -> None:
    reply = loaded.client.Predict(Prompt="The quick brown fox", Tokens=9, IgnoreEOS=True)
    metrics = loaded.client.GetMetrics()
    assert metrics.tokens_generated == reply.tokens == 9
    assert 0 < metrics.prompt_tokens_processed <= reply.prompt_tokens
    assert metrics.tokens_per_second > 0
    memory = loaded.client.Status().memory
    assert memory.total == sum(memory.breakdown.values()) > 0
    assert list(memory.breakdown) == ["rank 0"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"Prompt": ""}, "Prompt"),
        ({"Prompt": "Hi", "Temperature": -1}, "Temperature"),
        ({"Prompt": "Hi", "LogitBias": "{"}, "LogitBias"),
        ({"Prompt": "Hi", "TopLogprobs": 99}, "TopLogprobs"),
        ({"Messages": [message("wizard", "Hi")]}, "Messages"),
        ({"Messages": [message("user", "Hi")], "Tools": "no"}, "Tools"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(loaded: Backend, fields: dict[str, Any], named: str) -> None:
    for call in (lambda: loaded.client.Predict(**fields), lambda: list(loaded.client.PredictStream(**fields))):
        code, detail = code_of(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert named in detail


def broken_model(folder: Path, tiny_model: Path) -> Path:
    folder.mkdir()
    for file in tiny_model.iterdir():
        content = file.read_bytes()
        (folder / file.name).write_bytes(content[:-1000] if file.suffix == ".safetensors" else content)
    return folder


@pytest.fixture(params=["nowhere", "cut off", "malformed", "eos"])
def failing_load(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Path) -> Iterator[tuple[Any, str]]:
    match request.param:
        case "nowhere":
            yield {"Model": str(tmp_path / "nowhere")}, "nowhere"
        case "cut off":
            yield {"Model": str(broken_model(tmp_path / "broken", tiny_model))}, "model.safetensors"
        case "malformed":
            yield {"Model": str(tiny_model), "Options": ["temperature:hot"]}, "'hot'"
        case _:
            yield {"Model": str(tiny_model), "Options": ["eos_token:not one token"]}, "eos_token"


def test_a_load_that_fails_says_what_and_leaves_nothing(backend: Backend, failing_load: tuple[Any, str]) -> None:
    fields, named = failing_load
    result = backend.client.LoadModel(**fields)
    assert not result.success
    assert named in result.message
    assert status(backend) == "ERROR"
    assert backend.children() == []


def test_options_of_the_model_hold_for_every_request(backend: Backend, tiny_model: Path) -> None:
    backend.load(tiny_model, "temperature:1.5", "seed:3", "eos_token:<|endoftext|>", ContextSize=64)
    assert backend.text(Seed=1) == backend.text(Seed=2)
    # No limit given means the rest of the context.
    reply = backend.client.Predict(Prompt="The quick brown fox", IgnoreEOS=True)
    assert reply.prompt_tokens + reply.tokens == 64
    code, detail = code_of(lambda: backend.client.Predict(Prompt="The quick brown fox " * 40))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "64 tokens" in detail
