"""The page downloads models, from a hub on this machine: with progress, or with the reason why not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.page.browser import DEADLINE_MS, HOSTILE_NAME, answered, live, say, serious, watched
from tests.models.hub_server import HubServer, Repo
from tests.support.server import ChorusServer
from tests.support.sockets import short
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

WANTED = "acme/wanted"
LAST = "model-00002-of-00002.safetensors"


@dataclass
class Served:
    server: ChorusServer
    hub: HubServer
    weights: dict[str, int]
    """Bytes of each file."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One model, and any other that its machine has."""
    folder = tmp_path_factory.mktemp("downloads")
    sizes = {"vocab_size": 512, "max_position_embeddings": 4096}
    first = write_tiny_model(folder / "first", "llama", **sizes)
    other = write_tiny_model(folder / "other", "llama", seed=1, shards=2, **sizes)
    files = {file.name: file.read_bytes() for file in other.iterdir()}
    with HubServer({WANTED: Repo(files)}) as hub:
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(folder / "hf"),
            "CHORUS_CACHE": str(folder / "chorus"),
            "CHORUS_STATE": str(short(folder) / "state"),
        }
        arguments = ["--any-model", "--memory", "8GB", "--context", "1024"]
        with ChorusServer(first, arguments, folder, environment) as server:
            weights = {name: len(data) for name, data in files.items() if name.endswith(".safetensors")}
            yield Served(server, hub, weights)


def download(page: Page, name: str) -> None:
    page.get_by_label("Download a model").fill(name)
    page.get_by_role("button", name="Download").click()


def test_a_model_is_downloaded_with_its_progress_and_then_talked_to(browser: Browser, served: Served) -> None:
    released = served.hub.held[LAST] = threading.Event()
    with watched(browser) as session:
        page = session.open(served.server.url, "models")
        live(page)
        download(page, WANTED)
        row = page.locator(".pulls li", has_text=WANTED)
        expect(row.locator(".state")).to_have_text("running")
        # The first file is here and the last is not: so much of both, and no more.
        total = sum(served.weights.values())
        share = round(100 * (total - served.weights[LAST]) / total)
        meter = page.get_by_role("meter", name=f"Download of {WANTED}")
        expect(meter).to_have_attribute("aria-valuenow", str(share))
        assert 0 < share < 100
        expect(page.get_by_label("Download a model")).to_have_value("")
        assert serious(page) == []
        released.set()
        expect(row.locator(".state")).to_have_text("done")
        assert meter.count() == 0
        # A server of any model has it now, and loads it when it is told to.
        row.get_by_role("button", name=f"Load {WANTED}").click()
        card = page.get_by_role("region", name=WANTED, exact=True)
        expect(card.locator(".state")).to_have_text("ready", timeout=4 * DEADLINE_MS)
        assert row.get_by_role("button").count() == 0
        card.get_by_role("link", name="Chat").click()
        expect(page.get_by_label("Model")).to_have_value(WANTED)
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("Most tokens").fill("4")
        say(page, "Hello")
        answered(page)
        assert "wanted" in page.locator(".figures-line").inner_text()
        page.goto(f"{served.server.url}/#models")
        card.get_by_role("button", name=f"Unload {WANTED}").click()
        expect(card.locator(".state")).to_have_text("unloaded")
        card.get_by_role("button", name=f"Would {WANTED} fit?").click()
        expect(card.locator(".notice")).to_contain_text("It fits: 1 rank")
        session.check()
        # Where the server sees no room, whoever knows better may insist.
        refused = {"error": {"message": "It does not fit.", "code": "no_room"}}
        page.route("**/models/load", lambda route: route.fulfill(status=409, json=refused), times=1)
        card.get_by_role("button", name=f"Load {WANTED}").click()
        expect(card.locator(".notice")).to_contain_text("It does not fit.")
        with page.expect_request("**/models/load") as insisted:
            card.get_by_role("button", name="Load it all the same").click()
        assert insisted.value.post_data_json == {"model": WANTED, "wait": False, "force": True}
        expect(card.locator(".state")).to_have_text("ready", timeout=4 * DEADLINE_MS)
        assert all("409" in problem for problem in session.problems), session.problems


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("acme/unknown", "There is no model acme/unknown"),
        ("/etc/passwd", "neither a name of the catalog nor a Hugging Face id"),
        (HOSTILE_NAME, f"{HOSTILE_NAME!r} is neither"),
    ],
)
def test_what_cannot_be_downloaded_is_told_as_text(browser: Browser, served: Served, name: str, why: str) -> None:
    with watched(browser) as session:
        page = session.open(served.server.url, "models")
        live(page)
        download(page, name)
        told = page.locator("[aria-label=Download]").get_by_text(why)
        told.first.wait_for()
        assert page.locator("main img").count() == 0
        assert serious(page) == []
        assert all("409" in problem for problem in session.problems), session.problems
