"""The page over a real server of two ranks: drawn right, red when a rank is killed and green again, for everybody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.conftest import eventually
from tests.e2e.page.browser import PHONE, VIEWS, WIDE, answered, last_answer, live, say, serious, watched
from tests.support.server import ChorusServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

IMAGES = Path(__file__).parents[3] / "docs" / "images"
"""Written anew where CHORUS_SCREENSHOTS is set."""
WATCHED_MS = 16_000
QUESTION = "Write a short Python function that adds two numbers, and explain it."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("page")
    state = {"CHORUS_STATE": str(folder / "state")}
    # What a rank may take is planned, and shown, once this machine was measured for as many.
    words = ["plan", "smollm2-135m", "--ranks", "2"]
    subprocess.run([sys.executable, "-m", "chorus.cli", *words], check=True, capture_output=True)
    # Packed weights round what is read again differently: only float32 says the same word for word.
    arguments = ["--ranks", "2", "--transport", "grpc", "--cpu-products", "float32"]
    with ChorusServer("smollm2-135m", arguments, folder, state) as started:
        yield started


def rank(page: Page, number: int, state: str) -> str:
    return f'svg g.rank[data-rank="{number}"][data-state="{state}"]'


def ask_for(page: Page, tokens: int) -> None:
    """The likeliest answer, of so many tokens at most."""
    page.get_by_role("button", name="Parameters").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill(str(tokens))
    page.get_by_role("button", name="Parameters").click()


def test_two_ranks_are_drawn_as_they_are(browser: Browser, server: ChorusServer) -> None:
    told = {each["rank"]: each for each in server.get("/cluster/status")["ranks"]}
    with watched(browser) as session:
        page = session.open(server.url)
        live(page)
        page.locator(rank(page, 0, "ready")).wait_for()
        drawn = page.locator("svg g.rank")
        # In the order in which a token passes them: the leader holds the last layers.
        assert [int(each.get_attribute("data-rank") or -1) for each in drawn.all()] == [1, 0]
        for number in (0, 1):
            text = page.locator(rank(page, number, "ready")).text_content() or ""
            assert f"layers {told[number]['first_layer']}–{told[number]['last_layer']}" in text
            assert ("leader" in text) == (number == 0)
            assert "booked" in text
        assert page.locator("svg g.node").count() == 1
        assert page.locator("svg g.node .node-name").text_content() == told[0]["node"]
        assert "grpc" in (page.locator("svg g.link").text_content() or "")
        words = page.locator(".picture svg").get_attribute("aria-label") or ""
        assert f"rank 0, the leader, on {told[0]['node']} holds layers {told[0]['layers']} and is ready" in words
        session.check()


def test_what_one_more_machine_would_bring_is_what_the_planner_says(browser: Browser, server: ChorusServer) -> None:
    with watched(browser) as session:
        page = session.open(server.url)
        live(page)
        assert page.get_by_label("What if I add a machine of").input_value() == "16"
        with page.expect_response("**/cluster/plan") as answer:
            page.get_by_role("button", name="Plan it").click()
        assert answer.value.request.post_data_json == {"model": "smollm2-135m", "add": ["new=16GB"]}
        told = answer.value.json()
        rates = [1 / told[when]["plan"]["prediction"]["token_seconds"] for when in ("today", "then")]
        speeds = [f"{each:,.{1 if each < 10 else 0}f} tokens/s" for each in rates]
        outcome = page.locator("[aria-live=polite]", has_text="Today")
        expect(outcome.locator("p").first).to_have_text(f"Today {speeds[0]}, then {speeds[1]} a stream.")
        rows = [
            [f"{rank['rank']} {rank['node']}", f"{rank['first_layer']}–{rank['last_layer']}"]
            for rank in told["then"]["plan"]["ranks"]
        ]
        drawn = [row.locator("th, td").all_inner_texts()[:2] for row in outcome.locator("tbody tr").all()]
        assert drawn == rows
        # Whatever the planner makes of the machine, it is spoken of: it holds something, or is left out for a reason.
        assert "new" in outcome.inner_text()
        page.get_by_label("What if I add a machine of").fill("4096")
        with page.expect_response("**/cluster/plan") as answer:
            page.keyboard.press("Enter")
        assert answer.value.request.post_data_json["add"] == ["new=4096GB"]
        session.check()


def test_a_killed_rank_is_red_then_green_and_its_stream_says_the_same(browser: Browser, server: ChorusServer) -> None:
    with watched(browser) as session:
        page = session.open(server.url, "chat")
        live(page)
        ask_for(page, 120)
        say(page, QUESTION)
        answered(page)
        undisturbed = last_answer(page)
        picture = session.open(server.url)
        picture.locator(rank(picture, 1, "ready")).wait_for()
        # Asked for before: the answer is to be still on its way when the rank is killed.
        pid = next(each["pid"] for each in server.get("/cluster/status")["ranks"] if each["rank"] == 1)
        page.bring_to_front()
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator("article.streaming .prose")).to_be_visible()
        psutil.Process(pid).send_signal(signal.SIGKILL)
        killed = time.monotonic()
        picture.locator(rank(picture, 1, "lost")).wait_for(state="attached")
        red_after = time.monotonic() - killed
        picture.locator(rank(picture, 1, "ready")).wait_for(state="attached", timeout=120_000)
        green_after = time.monotonic() - killed
        answered(page)
        assert last_answer(page) == undisturbed
        assert server.get("/cluster/status")["recoveries"]["count"] >= 1
        expect(picture.locator(".events")).to_contain_text(re.compile("again|goes on"))
        print(f"red after {red_after:.2f} s, green after {green_after:.2f} s")
        session.check()


def tab_to(page: Page, name: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? '').trim()"
        )
        if focused == name:
            return
    raise AssertionError(f"the keyboard does not reach {name}")


def test_unload_load_and_cancel_take_a_keyboard_alone(browser: Browser, server: ChorusServer) -> None:
    with watched(browser) as session:
        page = session.open(server.url)
        live(page)
        tab_to(page, "Models")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        tab_to(page, "Unload smollm2-135m")
        page.keyboard.press("Enter")
        page.locator(".model .state", has_text="unloaded").wait_for()
        tab_to(page, "Load smollm2-135m")
        page.keyboard.press("Enter")
        page.locator(".model .state", has_text="ready").wait_for(timeout=120_000)
        tab_to(page, "Requests")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        no_end = {"0": -100, "2": -100}
        body = {"prompt": "Once", "max_tokens": 3000, "stream": True, "temperature": 0, "logit_bias": no_end}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as answer:
            assert answer.status_code == 200
            page.get_by_role("button", name="Cancel request").wait_for()
            name = page.get_by_role("button", name="Cancel request").get_attribute("aria-label") or ""
            tab_to(page, name)
            page.keyboard.press("Enter")
            text = answer.read().decode()
        assert "cancelled" in text
        page.locator("[aria-label='Recent requests'] .state", has_text="cancelled").wait_for()
        session.check()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_view_is_for_everybody(browser: Browser, server: ChorusServer, colours: str) -> None:
    """Nothing that axe calls serious, in either colours; and on a phone no view is wider than the phone."""
    with watched(browser, color_scheme=colours, reduced_motion="reduce") as session:
        page = session.open(server.url, "chat")
        live(page)
        ask_for(page, 40)
        say(page, QUESTION)
        answered(page)
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("System prompt").wait_for()
        assert serious(page) == [], f"parameters in {colours}"
        for size in (None, PHONE):
            if size:
                page.set_viewport_size({"width": size["width"], "height": size["height"]})
            for view in VIEWS:
                page.goto(f"{server.url}/#{view}")
                page.locator(f"main.view-{view} h1").wait_for(state="attached")
                page.locator("header nav a[aria-current=page]").wait_for()
                assert serious(page) == [], f"{view} in {colours}"
                wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wider <= 0, f"{view} is {wider} pixels too wide"
        session.check()


def test_seven_pages_of_one_browser_share_one_stream(browser: Browser, server: ChorusServer) -> None:
    streams = "request method=GET path=/live status=200"
    with watched(browser) as session:
        pages = [session.open(server.url) for _ in range(7)]
        for page in pages:
            page.bring_to_front()
            live(page)
            page.locator(rank(page, 0, "ready")).wait_for()
        # A seventh event stream would wait for ever here, and with it every other request of the page.
        pages[-1].goto(f"{server.url}/#chat")
        ask_for(pages[-1], 8)
        say(pages[-1], "Hello")
        answered(pages[-1])
        open_now = [
            each
            for each in psutil.Process(server.process_named("chorus.api").pid).net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED
        ]
        assert len(open_now) <= 7, "more connections than one stream and six for all else"
        session.check()
    eventually(lambda: streams in server.log, "a stream has ended")


def watch_until(page: Page, age: float) -> None:
    """Until the page has been open for so many milliseconds."""
    page.wait_for_timeout(max(0, age - page.evaluate("performance.now()")))


def test_screenshots(browser: Browser, server: ChorusServer) -> None:
    """Looked at by people, and shown in README and docs."""
    if not os.environ.get("CHORUS_SCREENSHOTS"):
        pytest.skip("CHORUS_SCREENSHOTS=1 writes them anew")
    IMAGES.mkdir(exist_ok=True)
    # What comes first after a start is not what is seen later.
    messages = [{"role": "user", "content": QUESTION}]
    httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 40}, timeout=120)
    shots = [("light", "light", None), ("dark", "dark", None), ("phone", "light", PHONE)]
    for name, colours, size in shots:
        options = {"color_scheme": colours, **({"viewport": size, "device_scale_factor": 2} if size else {})}
        with watched(browser, **options) as session:
            page = session.open(server.url, "chat")
            live(page)
            ask_for(page, 160)
            say(page, QUESTION)
            answered(page)
            page.screenshot(path=IMAGES / f"page-chat-{name}.png")
            # Charts are drawn from what the page has seen itself: it watches for a while, and tokens flow at its end.
            watch_until(page, WATCHED_MS)
            page.get_by_role("button", name="Regenerate").click()
            page.locator("article.streaming .prose").wait_for()
            page.goto(f"{server.url}/#cluster")
            watch_until(page, WATCHED_MS + 4000)
            if size is None:
                # As high as all of it, instead of a picture of the whole page: what stands at the side is as high, too.
                height = page.evaluate("document.documentElement.scrollHeight")
                page.set_viewport_size({"width": WIDE["width"], "height": height})
            page.screenshot(path=IMAGES / f"page-cluster-{name}.png")
            page.goto(f"{server.url}/#chat")
            answered(page)
            session.check()
