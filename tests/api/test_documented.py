"""docs/api.md says what there is: every path, every default, every figure of `performance` and `/cluster/status`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from chorus.api.app import ROUTES, create_app
from chorus.api.openai.chat.request import ChatRequest
from chorus.api.process import build_service
from chorus.api.usage import Performance
from chorus.api.views.answers import ClusterStatus, RankStatus
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.config.sampling import DefaultSampling, SamplingOptions
from chorus.serving.requests.sampling import choose_sampling

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
UNLISTED = {("POST", "/v1/responses/compact")}
"""Answers that it is not there."""


def section(title: str) -> str:
    """Up to the next title."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def rows(text: str) -> Iterator[tuple[str, str]]:
    """The first two cells of each row of its tables."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 1 and not line.startswith("| ---"):
            yield cells[0], cells[1]


def test_every_path_is_listed_and_no_other(model_path: Path) -> None:
    settings = ApiSettings(models=(ModelSettings(engine_address="unix:/none", id="m", name="m", path=model_path),))
    service = build_service(settings)
    served = {
        (method, re.sub(r"\{[^}]*\}", "{id}", route.path))
        for part in ROUTES
        for route in part.router(service).routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    beginning = PAGE.partition("\n## ")[0]
    listed = {
        (method, path) for cell, _ in rows(beginning) for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", cell)
    }
    assert listed == (served - UNLISTED) | {("GET", create_app(service).openapi_url)}


def test_every_default_is_what_holds_where_nobody_says_another() -> None:
    told = {name: default for cell, default in rows(section("Defaults")) for name in re.findall(r"`([a-z_]+)`", cell)}
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}]})
    chosen = choose_sampling(body, DefaultSampling())
    for rule in SamplingOptions.model_fields:
        name = f"{rule}_size" if rule.endswith("_context") else rule
        assert name in told, f"{name} has no row"
        if number := re.match(r"[\d.]+", told[name]):
            value = getattr(chosen, rule)
            assert type(value)(number[0]) == value, name
    assert (chosen.presence_context, chosen.frequency_context) == (0, 0)
    assert told["presence_context_size"] == told["frequency_context_size"] == "none: the tokens of the answer count"
    assert told["seed"] == "drawn anew for each request"
    assert ModelSettings.model_fields["max_tokens"].default is None
    assert told["max_tokens"].startswith("what the context leaves")
    # Whatever else it lists a request may leave out, too.
    assert all(getattr(body, name) is None for name in told if name in ChatRequest.model_fields)
    assert {"n", "stream", "stop", "logprobs", "tools", "tool_choice"} <= set(told)


def test_every_figure_of_performance_has_its_row() -> None:
    told = {name for cell, _ in rows(section("Usage")) for name in re.findall(r"`([a-z_]+)`", cell)}
    assert told == {figure.name for figure in fields(Performance)}


def test_the_status_that_is_shown_has_fields_of_the_real_one() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", section("Who serves"), re.DOTALL)
    status = json.loads(shown.replace(", …}", "}").replace("{…}", "{}").replace("[…]", "[]"))
    assert set(status) <= set(ClusterStatus.model_fields)
    for rank in status["ranks"]:
        assert set(rank) <= set(RankStatus.model_fields)
        assert rank["layers"] == f"{rank['first_layer']}-{rank['last_layer']}"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(#([^)]*)\)", PAGE))))
def test_a_link_within_the_page_leads_to_a_title(link: str) -> None:
    titles = re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)
    assert link in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
