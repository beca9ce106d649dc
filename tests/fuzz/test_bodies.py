"""Request bodies as they are read: a request, or an error that is the client's."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from chorus.api.anthropic.request import CountRequest, MessagesRequest
from chorus.api.body import parse
from chorus.api.errors import ApiError
from chorus.api.manage.plan import PlanRequest
from chorus.api.manage.pull import PullRequest
from chorus.api.manage.requests import CancelRequest
from chorus.api.openai.chat.request import ChatRequest
from chorus.api.openai.completions.request import CompletionRequest
from chorus.api.openai.embeddings import EmbeddingsRequest
from chorus.api.openai.responses.request import ResponsesRequest
from chorus.api.openai.sampling import SamplingFields
from chorus.api.tokens import DetokenizeRequest, TokenizeRequest
from chorus.config.sections import Limits
from chorus.serving.requests.measure import BadField
from tests.fuzz.foreign import values
from tests.fuzz.server.bodies import SAMPLES, damaged, mutated, written

KINDS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/requests/cancel": CancelRequest,
    "/models/pull": PullRequest,
    "/cluster/plan": PlanRequest,
}
samples = st.sampled_from(SAMPLES)


def read(path: str, raw: bytes) -> None:
    with suppress(ApiError, BadField):
        body = parse(raw, KINDS[path])
        if isinstance(body, SamplingFields):
            body.asked_grammar(Limits())
            assert all(isinstance(stop, str) for stop in body.stop_strings)


@given(samples, st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_changed_body_is_read_or_refused(sample: Any, rng: Any, times: int) -> None:
    read(sample.path, written(mutated(rng, sample.body, times)))


@given(samples, st.randoms(use_true_random=False))
def test_a_damaged_body_is_read_or_refused(sample: Any, rng: Any) -> None:
    read(sample.path, damaged(rng, written(sample.body)))


@given(
    st.sampled_from(sorted(KINDS)),
    values | st.dictionaries(st.sampled_from(sorted({k for s in SAMPLES for k in s.body})), values),
)
def test_a_body_of_any_values_is_read_or_refused(path: str, value: Any) -> None:
    read(path, json.dumps(value).encode())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_schema_written_as_text_and_nested_without_end_is_refused(path: str) -> None:
    schema = '{"a":' * 20_000 + "1" + "}" * 20_000
    body = {"messages": [{"role": "user", "content": "x"}]} if path.endswith("chat/completions") else {"prompt": "x"}
    request = parse(json.dumps({**body, "guided_json": schema}).encode(), KINDS[path])
    assert isinstance(request, SamplingFields)
    with pytest.raises((ApiError, BadField)):
        request.asked_grammar(Limits())
