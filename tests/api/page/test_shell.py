"""The files of the page: small, readable, of no other place, and under a policy by which no text becomes script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from chorus.api.page import shell
from chorus.api.server.wanted import prefers_page

ROOT = Path(__file__).parents[3]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
MOST_BYTES = 300_000
OURS = sorted(path for path in shell.FOLDER.rglob("*") if path.is_file() and "vendor" not in path.parts)
SCRIPTS = [path for path in OURS if path.suffix == ".js"]


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("application/json;q=0.5, text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        ("text/html;q=nonsense", False),
    ],
)
def test_a_browser_is_shown_the_page_and_others_the_summary(http: httpx.Client, accept: str, page: bool) -> None:
    assert prefers_page(accept) == page
    answer = http.get("/", headers={"accept": accept})
    assert answer.headers["vary"] == "accept"
    assert answer.headers["content-type"].startswith("text/html" if page else "application/json")
    assert page == ("<!doctype html>" in answer.text)


@pytest.mark.parametrize("path", ["/", "/static/app/main.js", "/static/live/worker.js"])
def test_no_text_can_become_script(http: httpx.Client, path: str) -> None:
    headers = http.get(path, headers={"accept": BROWSER}).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["trusted-types"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["frame-ancestors"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src", "worker-src", "frame-src"):
        assert policy[kind] == "'self'", kind
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-dns-prefetch-control"] == "off"
    assert "set-cookie" not in headers


def test_the_frame_that_starts_the_worker_is_empty_and_for_our_page_alone(http: httpx.Client) -> None:
    answer = http.get(f"/static/{shell.FRAME}")
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'self'" in policy
    assert "script-src 'self'" in policy
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert re.search(r"<body>\s*</body>", answer.text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("app/main.js", "text/javascript"),
        ("style/base.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
        ("live/frame.html", "text/html"),
        ("vendor/MANIFEST.json", "application/json"),
        ("vendor/LICENCES.txt", "text/plain"),
    ],
)
def test_a_file_has_its_type_and_is_sent_once(http: httpx.Client, name: str, kind: str) -> None:
    first = http.get(f"/static/{name}")
    assert first.status_code == 200
    assert first.headers["content-type"].startswith(kind)
    assert first.headers["cache-control"] == "no-cache"
    again = http.get(f"/static/{name}", headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "../shell.py", "..%2fshell.py", "app", "", "vendor/../../live.py"])
def test_there_is_nothing_but_the_files_of_the_page(http: httpx.Client, name: str) -> None:
    answer = http.get(f"{http.base_url}/static/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_all_of_it_is_at_most_300_kb() -> None:
    sizes = {path: path.stat().st_size for path in shell.FOLDER.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:12]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(shell.FOLDER).as_posix())
def test_a_file_of_ours_asks_no_other_place_and_makes_no_html(path: Path) -> None:
    text = path.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "dangerouslySetInnerHTML", "eval("):
        assert word not in text
    assert not re.search(r"""(?:src|href)=["']/|from ["']/|import\(["']/""", text), "an address that is not relative"
    others = set(re.findall(r"https?://([\w.-]+)", text)) - {"www.w3.org", "opencode.ai"}
    assert not others, "another host"
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), "a script that stands in the page"
        assert not re.search(r"\son\w+=|\sstyle=", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(shell.FOLDER).as_posix())
def test_what_a_module_imports_is_there(path: Path) -> None:
    for target in re.findall(r"""(?:from|import) ["']([^"']+)["']""", path.read_text()):
        assert target.startswith("."), f"{target} is no address"
        assert (path.parent / target).resolve().is_file(), target


def test_the_vendored_files_are_as_the_manifest_says() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "vendor_page.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout


def test_the_licences_of_what_is_vendored_come_with_it() -> None:
    names = {"preact", "htm", "marked", "uplot", "prismjs"}
    told = (shell.FOLDER / "vendor" / "LICENCES.txt").read_text()
    notice = (ROOT / "NOTICE").read_text().lower()
    for name in names:
        assert f"\n{name}\n" in f"\n{told}"
        assert name in notice
