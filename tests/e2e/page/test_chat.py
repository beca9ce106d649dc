"""The chat in a real browser: it streams, stops, edits and regenerates, and whatever a model says is text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import ApiProcess, eventually
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, refuse, say_until_cancelled
from tests.e2e.page.browser import LAN_NAME, answered, last_answer, live, say, serious, watched

pytestmark = pytest.mark.system

Says = Callable[[str], ScriptedEngine]
Start = Callable[..., ApiProcess]

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "<script>window.hit=2</script>",
    "<svg onload=window.hit=3><script>window.hit=4</script></svg>",
    "![a picture](http://elsewhere.example/x.png)",
    "[a link](javascript:window.hit=5)",
    "<iframe src=javascript:window.hit=6></iframe>",
    "<a href=data:text/html,x>data</a>",
)
FOREIGN = ("img", "script", "iframe", "a[href^=javascript]", "a[href^=data]")
HURT = f"[window.hit, document.querySelectorAll('{', '.join(f'main {each}' for each in FOREIGN)}').length]"


def test_an_answer_streams_and_is_kept_with_its_figures(browser: Browser, start: Start, says: Says) -> None:
    code = "```python\ndef add(a, b):\n    return a + b\n```"
    says(f"# Sums\n\n{code}\n\n- one\n- **two**\n\n| a | b |\n| - | - |\n| 1 | 2 |")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "How do I add?")
        answered(page)
        answer = page.locator("article.assistant")
        assert answer.locator("h3").inner_text() == "Sums"
        assert answer.locator("figure.code .t-keyword").first.inner_text() == "def"
        assert answer.locator("strong").inner_text() == "two"
        assert answer.locator("td").all_inner_texts() == ["1", "2"]
        assert "tiny-model" in answer.locator(".figures-line").inner_text()
        assert "tokens" in answer.locator(".figures-line").inner_text()
        # Another page of this browser finds the conversation, and so does this one when it comes back.
        other = session.open(api.url, "chat")
        other.get_by_role("button", name="How do I add?", exact=False).first.click()
        assert other.locator("article.assistant h3").inner_text() == "Sums"
        session.check()


def test_a_stopped_answer_ends_in_the_engine_too(browser: Browser, start: Start, says: Says) -> None:
    engine = says("")
    stopped: list[Run] = []

    def endless(run: Run) -> None:
        run.accept()
        while not run.cancelled.wait(0.02):
            run.send(70)
        stopped.append(run)
        run.finish(pb.CANCELLED)

    engine.default = endless
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "Go on for ever")
        page.locator("article.streaming .prose").wait_for()
        page.get_by_role("button", name="Stop").click()
        answered(page)
        assert "stopped" in page.locator(".figures-line").inner_text()

        def still_open() -> int:
            told: int = httpx.get(f"{api.url}/health", timeout=DEADLINE).json()["requests"]["open"]
            return told

        eventually(lambda: still_open() == 0, "nothing is open")
        eventually(lambda: len(stopped) == 1, "the engine works on it no more")
        session.check()


def test_a_question_is_edited_and_an_answer_made_again(browser: Browser, start: Start, says: Says) -> None:
    engine = says("the first answer")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "one")
        answered(page)
        says("the second answer")
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_text("the second answer").wait_for()
        assert page.get_by_text("the first answer").count() == 0
        shown = page.locator("article.assistant .versions")
        assert shown.inner_text() == "2/2"
        page.get_by_role("button", name="Earlier version").click()
        page.get_by_text("the first answer").wait_for()
        assert (shown.inner_text(), page.get_by_text("the second answer").count()) == ("1/2", 0)
        assert page.get_by_role("button", name="Earlier version").is_disabled()
        page.get_by_role("button", name="Later version").click()
        page.get_by_text("the second answer").wait_for()
        say(page, "two")
        page.locator("article.assistant").nth(1).wait_for()
        answered(page, 2)
        says("the third answer")
        page.get_by_role("button", name="Edit").first.click()
        page.get_by_label("Your message, edited").fill("another one")
        page.get_by_role("button", name="Send again from here").click()
        page.get_by_text("the third answer").wait_for()
        assert page.locator("article.user .bubble").all_inner_texts() == ["another one"]
        assert page.locator("article.assistant").count() == 1
        # The question as it was first, with all that followed it and its versions; also when the page comes again.
        page.reload()
        page.get_by_role("button", name="another one", exact=False).first.click()
        page.get_by_role("button", name="Earlier version").click()
        assert page.locator("article.user .bubble").all_inner_texts() == ["one", "two"]
        assert page.locator("article.user .versions").all_inner_texts() == ["1/2"]
        assert page.locator("article.assistant .versions").all_inner_texts() == ["2/2"]
        session.check()
    assert len(engine.runs) == 4


def open_conversation(page: Page, title: str) -> None:
    page.locator(".conversations .open", has_text=title).click()


def test_an_answer_made_again_loses_no_earlier_one(browser: Browser, start: Start, says: Says) -> None:
    """Neither where it cannot be asked for, nor where the page goes before it has come."""
    engine = says("the first answer")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "one")
        answered(page)
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("Tools, as JSON").fill("[")
        page.get_by_role("button", name="Regenerate").click()
        page.locator(".talk > .notice", has_text="The tools are no JSON").wait_for()
        assert last_answer(page) == "the first answer"
        say(page, "what is not sent is not lost")
        expect(page.get_by_label("Message", exact=True)).to_have_value("what is not sent is not lost")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Your message, edited").fill("nor this")
        page.get_by_role("button", name="Send again from here").click()
        expect(page.get_by_label("Your message, edited")).to_have_value("nor this")
        page.get_by_role("button", name="Cancel").click()
        page.reload()
        open_conversation(page, "one")
        assert last_answer(page) == "the first answer"
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("Tools, as JSON").fill("")
        engine.default = say_until_cancelled([70])
        page.get_by_role("button", name="Regenerate").click()
        page.locator("article.streaming").wait_for()
        page.reload()
        open_conversation(page, "one")
        shown = page.locator("article.assistant .versions")
        expect(shown).to_have_text("2/2")
        # Of the one that was lost nothing is there: the next takes its place.
        says("the second answer")
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_text("the second answer").wait_for()
        answered(page)
        expect(shown).to_have_text("2/2")
        page.get_by_role("button", name="Earlier version").click()
        page.get_by_text("the first answer").wait_for()
        session.check()


def test_one_answer_at_a_time_and_each_conversation_for_itself(browser: Browser, start: Start, says: Says) -> None:
    engine = says("an answer")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "the quiet one")
        answered(page)
        page.get_by_role("button", name="New conversation").click()
        say(page, "the other one")
        answered(page)
        # What is being edited stays with its own conversation.
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Your message, edited").fill("half")
        open_conversation(page, "the quiet one")
        page.locator("article.user .bubble", has_text="the quiet one").wait_for()
        assert page.get_by_label("Your message, edited").count() == 0
        page.get_by_role("button", name="New conversation").click()
        engine.default = say_until_cancelled([70])
        say(page, "the long one")
        page.locator("article.streaming").wait_for()
        page.locator(".conversations li").first.hover()
        page.get_by_role("button", name="Rename the long one").click()
        page.get_by_label("Title").fill("endless")
        page.keyboard.press("Enter")
        open_conversation(page, "the quiet one")
        page.get_by_text("Another conversation is being answered.").wait_for()
        for name in ("Regenerate", "Edit", "Earlier version"):
            assert page.locator(".messages").get_by_role("button", name=name).count() == 0, name
        open_conversation(page, "endless")
        page.locator("article.streaming").wait_for()
        page.get_by_role("button", name="Stop").click()
        answered(page)
        page.locator(".conversations .open", has_text="endless").wait_for()
        open_conversation(page, "the quiet one")
        says("once more")
        page.get_by_role("button", name="Regenerate").click()
        page.get_by_text("once more").wait_for()
        answered(page)
        session.check()
    assert len(engine.runs) == 4


def test_a_conversation_open_in_two_tabs_goes_on_in_both(browser: Browser, start: Start, says: Says) -> None:
    says("an answer")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "one")
        answered(page)
        other = session.open(api.url, "chat")
        open_conversation(other, "one")
        say(other, "two")
        answered(other, 2)
        expect(page.locator("article.assistant.done")).to_have_count(2)
        page.bring_to_front()
        say(page, "three")
        answered(page, 3)
        expect(other.locator("article.user .bubble")).to_have_text(["one", "two", "three"])
        session.check()


def test_what_is_shown_is_what_is_asked(browser: Browser, start: Start, says: Says) -> None:
    """The model of the list, and the parameters that somebody has set; nothing else."""
    says("yes")
    api = start(aliases=[])
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("System prompt").fill("Answer briefly.")
        page.get_by_label("Temperature").fill("0.3")
        page.get_by_label("Seed").fill("7")
        with page.expect_request("**/v1/chat/completions") as sent:
            say(page, "is it so?")
        body = sent.value.post_data_json
        assert body == {
            "model": "acme/tiny-model",
            "messages": [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "is it so?"}],
            "temperature": 0.3,
            "seed": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answered(page)
        session.check()


def test_reasoning_is_folded_and_a_call_is_shown_and_answered(browser: Browser, start: Start, says: Says) -> None:
    call = '{"name": "weather", "arguments": {"city": "Paris"}}'
    says(f"<think>\nIt may rain.\n</think>\n<tool_call>\n{call}\n</tool_call>")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        page.get_by_role("button", name="Parameters").click()
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        page.get_by_label("Tools, as JSON").fill(json.dumps([{"name": "weather", "parameters": schema}]))
        say(page, "What is the weather?")
        answered(page)
        assert page.get_by_text("It may rain.").is_hidden()
        page.locator(".reasoning summary").click()
        assert page.get_by_text("It may rain.").is_visible()
        assert "weather" in page.locator(".call .label").inner_text()
        for colours in ("Dark", "Light"):
            page.get_by_role("button", name=f"{colours} colours").click()
            assert serious(page) == [], colours
        assert '"Paris"' in page.locator(".call pre").inner_text()
        says("It rains.")
        page.get_by_label("What it returns").fill("rain")
        page.get_by_role("button", name="Answer the call").click()
        page.get_by_text("It rains.").wait_for()
        session.check()


def test_a_conversation_is_renamed_exported_and_deleted(
    browser: Browser, start: Start, says: Says, tmp_path: Path
) -> None:
    says("Of course.")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "Will you?")
        answered(page)
        page.locator(".conversations li").hover()
        page.get_by_role("button", name="Rename Will you?").click()
        page.get_by_label("Title").fill("A promise")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="A promise", exact=False).first.wait_for()
        page.locator(".menu summary").click()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Markdown").click()
        saved.value.save_as(tmp_path / "a.md")
        assert "## You\n\nWill you?" in (tmp_path / "a.md").read_text()
        with page.expect_download() as saved:
            page.get_by_role("button", name="JSON").click()
        saved.value.save_as(tmp_path / "a.json")
        assert json.loads((tmp_path / "a.json").read_text())["title"] == "A promise"
        page.locator(".conversations li").hover()
        page.get_by_role("button", name="Delete A promise").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.locator(".conversations li").wait_for(state="detached")
        session.check()


def test_a_failure_is_told_in_the_servers_words(browser: Browser, start: Start, says: Says) -> None:
    says("").default = refuse(pb.REJECTED, "the prompt is <b>odd</b>")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "anything")
        page.locator("article.failed .notice", has_text="the prompt is <b>odd</b>").wait_for()
        assert session.problems == [
            "error: Failed to load resource: the server responded with a status of 400 (Bad Request)"
        ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_whatever_a_model_says_is_text(browser: Browser, start: Start, says: Says, hostile: str) -> None:
    says(f"Look: {hostile} and\n\n{hostile}\n\n> {hostile}\n\n- {hostile}\n\n`{hostile}`\n\n```html\n{hostile}\n```\n")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, hostile)
        answered(page)
        hit, made = page.evaluate(HURT)
        assert (hit, made) == (None, 0)
        shown = page.locator("article.assistant").inner_text()
        assert ("image: a picture" if hostile.startswith("!") else hostile) in shown
        assert page.locator("article.user .bubble").inner_text() == hostile
        if hostile.startswith("!"):
            link = page.locator("article.assistant a").first
            assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        session.check()


def test_whatever_a_call_is_named_is_text(browser: Browser, start: Start, says: Says) -> None:
    image = HOSTILE[0]
    says(f"<tool_call>\n{json.dumps({'name': image, 'arguments': {image: image}})}\n</tool_call>")
    api = start()
    with watched(browser) as session:
        page = session.open(api.url, "chat")
        live(page)
        say(page, "Call something")
        answered(page)
        # A call of a tool that nobody has declared is text already for the server; here it is made one all the same.
        call = {"index": 0, "id": image, "function": {"name": image, "arguments": json.dumps({image: image})}}
        piece = json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]})
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {piece}\n\ndata: [DONE]\n\n"),
        )
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".call .label code")).to_have_text(image)
        expect(page.locator(".call pre")).to_contain_text(image)
        assert page.evaluate(HURT) == [None, 0]
        session.check()


def test_whatever_names_and_errors_say_is_text(browser: Browser, start: Start, says: Says, tmp_path: Path) -> None:
    """Of models, nodes, tools and engines: on every view."""
    image, script = HOSTILE[:2]
    engine = says("")
    engine.default = refuse(pb.FAILED, f"broken by {image}")
    node = {"name": script, "ranks": [{"rank": 0, "running": True}], "device": image, "round_trip_ms": 1}
    status = {"nodes": [node], "problems": {image: script}, "plan": None}
    (tmp_path / "cluster.json").write_text(json.dumps(status))
    api = start(id=f"acme/{image}", name=script, aliases=[image], status_file=str(tmp_path / "cluster.json"))
    with watched(browser) as session:
        page = session.open(api.url)
        live(page)
        for view in ("cluster", "models", "requests", "connect", "chat"):
            page.goto(f"{api.url}/#{view}")
            page.locator(f"main.view-{view} h1").wait_for(state="attached")
            assert page.evaluate(HURT) == [None, 0], view
        page.get_by_role("button", name="Parameters").click()
        page.get_by_label("Tools, as JSON").fill(json.dumps([{"name": image, "parameters": {"type": "object"}}]))
        say(page, "go")
        page.locator("article.failed .notice").wait_for()
        page.get_by_label("Tools, as JSON").fill("")
        page.get_by_role("button", name="Regenerate").click()
        page.locator("article.failed .notice", has_text="broken by <img").wait_for()
        assert page.evaluate(HURT) == [None, 0]
        page.goto(f"{api.url}/#cluster")
        page.locator("svg .node-name").wait_for()
        assert page.locator("svg .node-name").first.text_content().startswith("<script>")  # type: ignore[union-attr]
        assert page.evaluate(HURT) == [None, 0]
        assert session.hosts == {"127.0.0.1"}
        assert all("Failed to load resource" in problem for problem in session.problems), session.problems


def test_a_page_on_a_plain_name_of_the_lan_copies_and_keeps_too(browser: Browser, start: Start, says: Says) -> None:
    """It has neither navigator.clipboard nor crypto.randomUUID."""
    says("```\ncopy me\n```")
    api = start(hosts=[LAN_NAME])
    with watched(browser) as session:
        page = session.open(api.url.replace("127.0.0.1", LAN_NAME), "chat")
        live(page)
        assert page.evaluate(
            "[isSecureContext, navigator.clipboard === undefined, crypto.randomUUID === undefined]"
        ) == [False, True, True]
        say(page, "give me something")
        answered(page)
        page.locator("figure.code").get_by_role("button", name="Copy").click()
        # The button says so for a moment only.
        page.get_by_role("status").get_by_text("Copied", exact=True).wait_for()
        page.get_by_label("Message", exact=True).focus()
        page.keyboard.press("Control+v")
        expect(page.get_by_label("Message", exact=True)).to_have_value("copy me")
        assert last_answer(page)
        session.check(LAN_NAME)
