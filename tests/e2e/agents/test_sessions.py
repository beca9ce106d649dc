"""Claude Code and OpenCode themselves, against a server that is real but for what its model says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.agents.network import OwnNetwork
from tests.e2e.agents.talks import AGAIN, Errand, claude_code, opencode, story
from tests.support.scripted_tokens import ScriptedTokens
from tests.support.server import ChorusServer

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces")]

CACHED = 0.95
READ_AGAIN = 8
"""A few tokens: the last one of an answer is not always fed, and a prompt that is stored whole is fed its own last."""


@dataclass(frozen=True)
class Served:
    url: str
    script: ScriptedTokens
    errands: dict[str, Errand]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def served(
    request: pytest.FixtureRequest, agent_model: Path, network: OwnNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    errands = {make.__name__: make(tmp_path_factory.mktemp(make.__name__)) for make in (claude_code, opencode)}
    talks = [errand.talk for errand in errands.values()]
    script = ScriptedTokens(folder / "script", agent_model, talks, turn="<|im_start|>assistant\n", end="<|im_end|>")
    arguments = ["--ranks", str(request.param), "--parallel", "pipeline"]
    with ChorusServer(agent_model, arguments, folder, script.environment, network.enter) as server:
        yield Served(server.url, script, errands)


@pytest.mark.parametrize("name", ["claude_code", "opencode"])
def test_what_a_client_sends_once_more_is_read_once(
    name: str, served: Served, clients: Path, network: OwnNetwork
) -> None:
    errand = served.errands[name]
    agent = errand.client(clients, served.url, errand.folder, network.enter)
    (agent.work / "story.txt").write_text(story())
    assert errand.first_answer in agent.ask(errand.prompt)
    assert (agent.work / "copy.txt").read_text() == "plum\n"
    assert errand.last_answer in agent.ask(AGAIN)
    assert (agent.work / "note.txt").read_text() == "pear\n"
    requests = served.script.requests(errand.talk)
    assert len(requests) == len(errand.answers)
    for earlier, later in pairwise(requests):
        new = len(later.prompt) - len(earlier.prompt) - len(earlier.answer)
        told = f"{later.fed} of {len(later.prompt)} tokens were fed, {new} are new; the rest parts "
        parting = served.script.parting(earlier, later)
        assert later.cached >= CACHED, told + parting
        assert max(later.fed) <= new + READ_AGAIN, told + parting
