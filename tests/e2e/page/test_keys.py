"""The page of a server that asks for keys: the shell is there, the data comes with a key, and each key sees its own."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from chorus.security.key_rules import key_hash, new_key
from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import ScriptedEngine, say_until_cancelled
from tests.e2e.page.browser import live, serious, watched

pytestmark = pytest.mark.system

ANNA, OPERATOR = new_key(), new_key()
KEYS = [
    {"id": "anna", "sha256": key_hash(ANNA), "scopes": ["use"]},
    {"id": "operator", "sha256": key_hash(OPERATOR), "scopes": ["admin"]},
]


def unlock(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Open").click()


def test_whoever_stands_on_a_request_stays_there_when_an_older_one_ends(
    browser: Browser, start: Callable[..., ApiProcess], says: Callable[[str], ScriptedEngine]
) -> None:
    says("").default = say_until_cancelled([70])
    api = start()
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    url = f"{api.url}/v1/chat/completions"
    with watched(browser) as session:
        page = session.open(api.url, "requests")
        live(page)
        buttons = page.get_by_role("button", name="Cancel request")
        with httpx.stream("POST", url, json=body, timeout=60) as older:
            assert older.status_code == 200
            expect(buttons).to_have_count(1)
            first = buttons.get_attribute("aria-label") or ""
            with httpx.stream("POST", url, json=body, timeout=60) as newer:
                assert newer.status_code == 200
                expect(buttons).to_have_count(2)
                (second,) = {each.get_attribute("aria-label") or "" for each in buttons.all()} - {first}
                page.get_by_role("button", name=second).focus()
                httpx.post(f"{api.url}/requests/cancel", json={"id": first.split()[-1]}, timeout=60).raise_for_status()
                expect(buttons).to_have_count(1)
                expect(page.get_by_role("button", name=second)).to_be_focused()
        session.check()


def test_a_key_opens_the_page_for_its_tab_alone(
    browser: Browser, start: Callable[..., ApiProcess], says: Callable[[str], ScriptedEngine]
) -> None:
    says("").default = say_until_cancelled([70])
    api = start(keys=[dict(key) for key in KEYS])
    with watched(browser) as session:
        page = session.open(api.url, "requests")
        page.get_by_role("heading", name="This server asks for a key").wait_for()
        assert serious(page) == []
        unlock(page, "schlüssel")
        page.get_by_text("A key is of plain letters, digits and signs").wait_for()
        unlock(page, "wrong")
        page.get_by_text("The server does not know that key.").wait_for()
        unlock(page, ANNA)
        live(page)
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        headers = {"authorization": f"Bearer {OPERATOR}"}
        url = f"{api.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            assert answer.status_code == 200
            other = session.open(api.url, "requests")
            other.get_by_role("heading", name="This server asks for a key").wait_for()
            unlock(other, OPERATOR)
            other.locator("[aria-label='Running requests'] td", has_text="operator").wait_for()
            page.bring_to_front()
            expect(page.locator("main")).to_contain_text("Those of your key. 0 requests running")
            expect(page.locator("main")).to_contain_text("Nothing runs")
        page.goto(f"{api.url}/#models")
        page.locator(".model").wait_for()
        assert page.get_by_role("button", name="Unload").count() == 0
        page.reload()
        live(page)
        assert page.context.cookies() == []
        page.get_by_role("button", name="Forget the key").click()
        page.get_by_role("heading", name="This server asks for a key").wait_for()
        assert all("401" in problem for problem in session.problems), session.problems
