"""Debian's Chromium, driven by playwright, with an eye on what must never happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A name as a machine has it on somebody's LAN: a page there is no secure context.
    "--host-resolver-rules=MAP studio.lan 127.0.0.1",
]
LAN_NAME = "studio.lan"
WIDE, PHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
DEADLINE_MS = 60_000
expect.set_options(timeout=DEADLINE_MS)
HOSTILE_NAME = "<img src=x onerror=window.hit=1>"
VIEWS = ("cluster", "models", "requests", "chat", "connect")


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS, timeout=2 * DEADLINE_MS)


class Watched:
    """One browser profile; what its pages complain of, and whom they ask, is kept."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(DEADLINE_MS)
        self.context = context
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.places: set[str] = set()
        """Hosts with their ports."""
        context.on("page", self._watch)
        context.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        self.hosts.add(parts.hostname or "")
        self.places.add(f"{parts.scheme}://{parts.netloc}")

    def _watch(self, page: Page) -> None:
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def open(self, url: str, view: str = "cluster") -> Page:
        page = self.context.new_page()
        page.goto(f"{url}/#{view}")
        return page

    def check(self, *hosts: str) -> None:
        assert self.problems == []
        assert self.hosts <= set(hosts or ("127.0.0.1",)), self.hosts


@contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[Watched]:
    context = browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    try:
        yield Watched(context)
    finally:
        context.close()


def live(page: Page) -> None:
    """Waits until the page has its first picture."""
    page.locator("header .state", has_text="Live").wait_for()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, count: int = 1) -> None:
    """Waits until the last of so many answers is complete."""
    page.locator("article.assistant").nth(count - 1).wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()


def last_answer(page: Page) -> str:
    return page.locator("article.assistant .prose").last.inner_text()


def serious(page: Page) -> list[str]:
    """What axe finds that keeps somebody from using the page."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
