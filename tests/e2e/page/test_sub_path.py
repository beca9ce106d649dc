"""The page behind a proxy that has put the server below a path of its own: nothing of it asks beside that path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import ScriptedEngine
from tests.e2e.page.browser import answered, last_answer, live, say, watched
from tests.e2e.page.proxy import proxy_before

pytestmark = pytest.mark.system

PATH = "/our/models/"


def test_all_of_the_page_works_below_a_path(
    browser: Browser, start: Callable[..., ApiProcess], says: Callable[[str], ScriptedEngine]
) -> None:
    says("one word after the other")
    api = start()
    with proxy_before(api.url, PATH) as proxy, watched(browser) as session:
        page = session.open(proxy.url)
        live(page)
        page.locator('svg g.rank[data-rank="0"][data-state="ready"]').wait_for()
        shown = {
            "models": page.locator(".model h2"),
            "requests": page.get_by_text("Nothing runs"),
            "connect": page.locator("code", has_text=f"curl {proxy.url}/v1/chat/completions"),
            "chat": page.get_by_label("Message", exact=True),
        }
        for view, sign in shown.items():
            page.locator("header nav a", has_text=view.title()).click()
            sign.wait_for()
            assert page.url == f"{proxy.url}/#{view}"
            if view == "connect":
                # What the server alone knows: it was asked for below the path, too.
                expect(page.locator("figure.code").last).to_contain_text('"dtype": "float32"')
        say(page, "go on")
        answered(page)
        assert last_answer(page) == "one word after the other"
        # The stream goes on: what was asked just now is told by it, and not by the chat.
        page.locator("header nav a", has_text="Requests").click()
        page.locator("[aria-label='Recent requests'] tbody tr").wait_for()
        page.reload()
        live(page)
        assert proxy.strayed == []
        assert {"/live", "/static/live/worker.js", "/v1/chat/completions", "/health"} <= set(proxy.passed)
        # The proxy is all that was asked: a request to the server itself would have gone around it.
        assert session.places == {proxy.url.removesuffix(PATH.rstrip("/"))}
        session.check()
