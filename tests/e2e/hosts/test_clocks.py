"""A trace over three hosts whose monotonic clocks are seconds apart: each in a time namespace of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import traces
from tests.e2e.hosts.namespaces import Host
from tests.e2e.hosts.test_three_hosts import served_by_token

pytestmark = [pytest.mark.system, pytest.mark.linux("network and time namespaces"), pytest.mark.timeout(900)]

STEPS = 60
EXPLAINED = 0.6
"""Of all waiting: each word of the leader takes its way over a network here."""
BUSY_SECONDS = 150
"""So long others may want the processors before a trace counts whatever it shows."""
AHEAD = {"host2": 2.0, "host3": 4.0}
KEEP_ASKING = """
import httpx, itertools, sys
for number in itertools.count():
    body = {"prompt": f"{number} " + "Once upon a time " * 20, "max_tokens": 20}
    print(httpx.post(sys.argv[1] + "/v1/completions", json=body, timeout=300).status_code, flush=True)
"""


def test_spans_of_hosts_with_clocks_seconds_apart_agree_within_the_stated_error(
    hosts: list[Host], model_on_first: str
) -> None:
    first = hosts[0]
    for host, ahead in zip(hosts[1:], AHEAD.values(), strict=True):
        host.clock_ahead = ahead
    words = ["--nodes", "2", "--split", "10,10,10"]
    with served_by_token(hosts, model_on_first, [], [], words) as (url, server):
        asking = first.start(first.folder / "asking.log", str(first.python), "-c", KEEP_ASKING, url)
        try:
            # All but how much of the waiting is explained is asked of every trace.
            for summary, trace in recorded(first):
                clocks_agree(summary)
                traces.is_whole(trace)
                taken = traces.nothing_is_taken_before_it_is_sent(trace)
                assert taken >= STEPS
                share = traces.waits_are_for_whom_they_name(trace, floor=0)
        finally:
            asking.terminate()
            asking.wait(120)
        server.terminate()
        server.wait(120)
    print(f"{share:.0%} of all waiting is explained; {taken} tensors seen")
    assert share >= EXPLAINED


def recorded(first: Host) -> Iterator[tuple[dict[str, Any], traces.Written]]:
    """Traces up to the first that was recorded while nobody else held up the leader's word, or else for long enough."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        done = first.chorus("trace", "--json", "--steps", str(STEPS), "--seconds", "200", "-o", "clocks.json")
        assert done.returncode == 0, done.stderr
        trace = traces.Written(json.loads((first.home / "clocks.json").read_text()))
        yield json.loads(done.stdout), trace
        if traces.explained(trace) >= EXPLAINED or time.monotonic() > deadline:
            return


def clocks_agree(summary: dict[str, Any]) -> None:
    assert summary["missing"] == {}
    assert summary["steps"] >= STEPS
    assert len(summary["ranks"]) == 3
    for rank in summary["ranks"]:
        true = AHEAD.get(rank["node"], 0.0)
        found, error = rank["clock_offset_seconds"], rank["clock_error_seconds"]
        print(f"{rank['node']}: {found:.6f} s ahead, within {error * 1e3:.3f} ms; truly {true:g}")
        assert abs(found - true) <= error + 1e-9
        assert error < 1.0, "an error as large as the difference itself would say nothing"
    assert {rank["node"] for rank in summary["ranks"][1:]} == set(AHEAD)
