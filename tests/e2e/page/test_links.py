"""The picture over real nodes: each link says what was measured between its own two machines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cluster.harness import Stream, cluster, free_block, url_of
from tests.e2e.page.browser import live, watched
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server and two nodes, a rank on each."""
    folder = tmp_path_factory.mktemp("links")
    model = write_tiny_model(folder / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    with cluster(folder / "cluster") as nodes:
        ports = {"one": free_block(), "two": free_block()}
        peers = [word for port in ports.values() for word in ("--peer", f"127.0.0.1:{port}")]
        server = nodes.serve(model, peers)
        for name, port in ports.items():
            nodes.agent(name, port=port)
        yield url_of(server)


def link(page: Page, from_rank: int, to_rank: int) -> Any:
    return page.locator(f'svg g.link[data-from="{from_rank}"][data-to="{to_rank}"]')


def as_sold(bandwidth: float) -> str:
    """As `bits` of the page's format.js."""
    rate = bandwidth * 8
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= unit:
            return f"{rate / unit:.{1 if rate / unit < 10 else 0}f} {name}"
    return f"{rate:.0f} bit/s"


def told_of_links(url: str) -> dict[tuple[int, int], str]:
    """What each link of a pipeline over two nodes is to say, by its ranks, as the status has it now."""
    status = httpx.get(f"{url}/cluster/status", timeout=60).json()
    ranks = {each["rank"]: each for each in status["ranks"]}
    nodes = {each["name"]: each for each in status["nodes"]}
    assert sorted(nodes) == ["one", "two"]
    (first, second, leader) = sorted(ranks, key=lambda number: ranks[number]["first_layer"])
    sender, receiver = (nodes[ranks[number]["node"]] for number in (first, second))
    (between,) = (
        each
        for each in status["links"]
        if (each["sender"], each["receiver"]) == (sender["node_id"], receiver["node_id"])
    )
    # Of the only way there is between two nodes, nobody measures the bandwidth.
    speed = as_sold(between["bandwidth"]) if between["measured"] else status["transport"]
    known = receiver["bandwidth_bytes_per_second"]
    served = as_sold(known) if known else status["transport"]
    return {
        # Between the nodes: what they tried themselves.
        (first, second): f"{speed} · {between['round_trip'] * 1e3:.2f} ms",
        # To the machine that serves: what its coordinator measured of the node.
        (second, leader): f"{served} · {receiver['round_trip_ms']:.2f} ms",
    }


def test_a_link_says_what_was_measured_between_its_machines(browser: Browser, url: str) -> None:
    with watched(browser) as session:
        page = session.open(url)
        live(page)
        deadline = time.monotonic() + 60
        # Links are measured again now and then: the page is to say what the status says at the same time. Two of them
        # may happen to take as long to the hundredth of a millisecond, and do not for long.
        while True:
            told = told_of_links(url)
            shown = {ranks: " ".join((link(page, *ranks).text_content() or "").split()) for ranks in told}
            if shown == told and len(set(told.values())) == 2:
                break
            assert time.monotonic() < deadline, (shown, told)
            page.wait_for_timeout(100)
        assert page.locator("svg g.link").count() == 2
        session.check()


def test_a_link_says_what_passes_while_something_does(browser: Browser, url: str) -> None:
    with watched(browser) as session:
        page = session.open(url)
        live(page)
        links = page.locator("svg g.link")
        expect(links).to_have_count(2)
        stream = Stream(url, max_tokens=3000, logit_bias={"0": -100, "2": -100})
        for each in links.all():
            expect(each).to_have_text(re.compile(r"ms ?\d[\d.]* (k|M)?B/s$"))
            expect(each).to_have_class(re.compile("flowing"))
        assert stream.is_alive() or len(stream.events) > 10
        stream.join(180)
        for each in links.all():
            expect(each).to_have_text(re.compile(r" ms$"))
        session.check()
