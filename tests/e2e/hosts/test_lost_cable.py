"""The cable of a host is cut while an answer is on its way: the others finish it, and what comes back is not heard."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.harness import Process, eventually
from tests.e2e.hosts.cables import Cables
from tests.support.alone import text_alone
from tests.support.server import running
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]

PROMPT = "The quick brown fox"
TOKENS = 240
MANY_TOKENS = 1000
"""So many that an answer is still on its way when the cable is cut, however long that takes."""
NO_END = {"2": -100}


def ranks_of(agent: Process) -> list[psutil.Process]:
    return running(agent.children(), "chorus.rank")


def test_a_stream_outlives_the_cable_of_a_follower_and_the_old_rank_cannot_speak_when_it_is_plugged_in_again(
    cables: Cables, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    alone = text_alone(model, PROMPT, TOKENS)
    cables.plug(1, 2, "12.0")
    cables.plug(1, 3, "13.0")
    cables.plug(2, 3, "23.0")
    agents = {host: cables.join(host) for host in (2, 3)}
    server = cables.serve(model)
    url = server.wait_for(r"ready .* at +(http://\S+)/v1")[1]
    (old,) = ranks_of(agents[3])
    assert cables.stream(url, PROMPT, TOKENS).text() == alone
    expected = cables.stream(url, PROMPT, MANY_TOKENS, logit_bias=NO_END).text()
    client = cables.stream(url, PROMPT, MANY_TOKENS, logit_bias=NO_END)
    assert eventually(lambda: len(client.events) > 20, 60), client.log
    cables.cut(3, "13.0", "23.0")
    cut_at = time.monotonic()
    assert client.text() == expected
    server.wait_for("continuing with host2 without host3")
    assert cut_at < client.events[-1]["at"]
    print(f"longest gap {client.longest_gap:.1f} s")

    cables.mend(3, "13.0", "23.0")
    server.wait_for("host3 came and is not used")
    assert eventually(lambda: not old.is_running()), agents[3].log
    assert cables.stream(url, PROMPT, TOKENS).text() == alone
    assert not ranks_of(agents[3])
    assert not re.search("Traceback", server.log), server.log
    assert server.stop() == 0, server.log
