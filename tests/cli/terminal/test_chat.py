"""`chorus chat` as somebody sees it who sits before a terminal, and as a pipe gets it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner

from chorus.cli import app
from chorus.cli.chat.prompt import HISTORY, MOST_HISTORY_BYTES, open_prompt
from tests.api.scripted_engine import Run, say_until_cancelled
from tests.cli.conftest import Scripted
from tests.cli.terminal.conftest import FIRST, SECOND, Talker
from tests.support.screen import ALT_ENTER, CTRL_C, CTRL_D, ENTER, Terminal

Open = Callable[..., Terminal]
UP = "\x1b[A"
TAB = "\t"
READY = "a new conversation, 0 tokens answered"
HOSTILE = (
    "before\x1b[2J\x1b[1;1Hover\x1b]0;title\x07\x9b31m\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\ \x08\x08\x08 \r[red]"
    "marked[/red] &#27;[2J &#x9b;5m \u202eright to left [shown](http://elsewhere)\x1b[?1049h\x1bc after"
)


def talk(terminal: Open, talker: Talker, *words: str, **size: int) -> Terminal:
    opened = terminal("chat", "--url", f"{talker.url}/v1", *words, **size)
    opened.wait_for(READY)
    return opened


def test_a_whole_conversation(terminal: Open, talker: Talker, tmp_path: Path) -> None:
    talker.says("# Title\n\nSome **bold** words.\n\n- one\n- two\n", "The second answer.", "Another second answer.")
    chat = talk(terminal, talker, "--system", "Be brief.")
    chat.type(f"first line{ALT_ENTER}second line\\{ENTER}third line{ENTER}")
    figures = re.compile(r"\n\d+ tokens, [\d.]+ tok/s, first token after [\d.]+ s, prompt \d+")
    shown = chat.wait_for(lambda shown: figures.search(shown) is not None)
    assert "Some bold words." in shown
    assert " • one\n • two\n" in shown
    assert "user\nfirst line\nsecond line\nthird line\n" in talker.asked(0)
    assert "system\nBe brief.\n" in talker.asked(0)

    chat.type(f"/set temperature 0.25{ENTER}")
    chat.wait_for("\ntemperature 0.25")
    chat.type(f"And now?{ENTER}")
    chat.wait_for("The second answer.")
    assert "Some **bold** words." in talker.asked(1), "what was said before is part of what is asked"
    assert talker.run(1).submit.sampling.temperature == pytest.approx(0.25)

    chat.type(f"/retry{ENTER}")
    chat.wait_for("Another second answer.")
    assert talker.asked(2) == talker.asked(1)

    chat.type(f"/save talk.json{ENTER}/save talk.md{ENTER}")
    chat.wait_for(lambda shown: shown.count("written to") == 2)
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant", "user", "assistant"]
    assert (saved["model"], saved["system"], saved["parameters"]) == (FIRST, "Be brief.", {"temperature": 0.25})
    assert "## user\n\nAnd now?\n\n## assistant\n\nAnother second answer.\n" in (tmp_path / "talk.md").read_text()

    talker.says("After undoing.", "After loading.")
    chat.type(f"/undo{ENTER}")
    chat.wait_for("forgotten: And now?")
    chat.type(f"third question{ENTER}")
    chat.wait_for("After undoing.")
    assert "And now?" not in talker.asked(3)
    chat.type(f"/clear{ENTER}/load talk.json{ENTER}")
    chat.wait_for("4 messages")
    chat.type(f"fourth question{ENTER}")
    chat.wait_for("After loading.")
    assert "Another second answer." in talker.asked(4)
    chat.type(f"/tokens{ENTER}")
    chat.wait_for("5 answers of")
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0


def test_lines_are_remembered_by_the_next_chat_and_commands_are_completed(terminal: Open, talker: Talker) -> None:
    talker.says("First.", "Again.")
    chat = talk(terminal, talker)
    chat.type(f"remember me{ENTER}")
    chat.wait_for("First.")
    chat.type(f"/quit{ENTER}")
    assert chat.wait_for_end() == 0
    chat = talk(terminal, talker)
    chat.type(f"{UP}{UP}")
    chat.wait_for("> remember me")
    chat.type(ENTER)
    chat.wait_for("Again.")
    chat.type("/ret")
    chat.wait_for("ask the last question again")
    chat.type(f"{TAB}")
    chat.wait_for("> /retry")
    chat.type(CTRL_C)
    chat.wait_for(lambda shown: "/retry" not in shown)
    chat.type(CTRL_C)
    assert chat.wait_for_end() == 0


def test_control_c_stops_an_answer_and_the_server_stops_too(terminal: Open, talker: Talker) -> None:
    talker.then(say_until_cancelled(talker.tokens("Once upon a time there was")))
    talker.says("Go on.")
    chat = talk(terminal, talker)
    chat.type(f"Tell me a tale{ENTER}")
    chat.wait_for("Once upon a time there was")
    chat.type(CTRL_C)
    chat.wait_for("stopped, ")
    talker.run(0).wait_cancelled()
    chat.type(f"continue{ENTER}")
    chat.wait_for("Go on.")
    chat.wait_for("4 messages, ")  # the prompt is back: before, Ctrl-C would only stop the answer
    assert "Once upon a time there was" in talker.asked(1), "what had come is kept"
    chat.type(CTRL_C)
    assert chat.wait_for_end() == 0


def test_an_answer_longer_than_the_screen_scrolls_and_each_paragraph_is_there_once(
    terminal: Open, talker: Talker
) -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(60))
    paragraphs = [f"Paragraph number {number} stands here." for number in range(30)]
    talker.says("\n\n".join([*paragraphs, f"```python\n{code}\n```", "The end."]))
    chat = talk(terminal, talker)
    chat.type(f"Speak{ENTER}")
    chat.wait_for("tok/s")
    said = [line.strip() for line in chat.everything().splitlines()]
    for line in [*paragraphs, *code.splitlines(), "The end."]:
        assert said.count(line) == 1, line


def test_a_terminal_that_changes_its_size_meanwhile(terminal: Open, talker: Talker) -> None:
    words = " ".join(f"word{number}" for number in range(120))

    def script(run: Run) -> None:
        say_until_cancelled(talker.tokens(f"A beginning.\n\n{words}\n\n"))(run)

    talker.then(script)
    talker.says("After it.")
    chat = talk(terminal, talker)
    chat.type(f"Speak{ENTER}")
    chat.wait_for("word119")
    chat.resize(40, 12)
    chat.type(CTRL_C)
    chat.wait_for("stopped, ")
    chat.type(f"More{ENTER}")
    shown = chat.wait_for("After it.")
    assert max(len(line) for line in shown.splitlines()) <= 40
    chat.resize(120, 40)
    chat.type(f"/help{ENTER}")
    chat.wait_for("the models of the server and their state, or who answers from now on")
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0


def test_what_a_model_says_never_reaches_the_terminal_as_anything_but_text(terminal: Open, talker: Talker) -> None:
    talker.says(HOSTILE, f"```\n{HOSTILE}\n```")
    chat = talk(terminal, talker)
    chat.type(f"Speak{ENTER}")
    chat.wait_for("after")
    chat.type(f"Code{ENTER}")
    chat.wait_for("4 messages, ")
    shown = chat.everything()
    assert "before[2J[1;1Hover]0;title31m" in chat.everything()
    assert "[red]marked[/red]" in shown
    assert "shown (http://elsewhere)" in shown
    assert chat.screen.title == ""
    for wrong in ("\x1b]0;", "\x1b]8;", "\x07", "\x1bc", "\x1b[2J", "\x1b[?1049h", "\x9b", "\u202e"):
        assert wrong.encode() not in chat.raw, repr(wrong)
    chat.type(CTRL_D)


def test_what_is_typed_never_ends_a_conversation(terminal: Open, talker: Talker) -> None:
    talker.says("An answer.", "Another answer.")
    chat = talk(terminal, talker)
    chat.type(f"/set temperature NaN{ENTER}")
    chat.wait_for("temperature: no request can hold that")
    chat.type(f"/save {'n' * 300}.md{ENTER}")
    chat.wait_for("File name too long")
    chat.type(f"na\udcefve and \udcff{ENTER}")
    chat.wait_for("An answer.")
    assert "na?ve and ?" in talker.asked(0)
    chat.type(f"/retry{ENTER}")
    chat.wait_for("Another answer.")
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0


def test_the_history_that_was_cut_is_still_for_its_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path))
    file = tmp_path / HISTORY
    file.write_bytes(b"\n# 2026-01-01\n+hello\n" * (MOST_HISTORY_BYTES // 10))
    file.chmod(0o600)
    with create_app_session(input=DummyInput(), output=DummyOutput()):
        open_prompt(list, str)
    assert file.stat().st_size < MOST_HISTORY_BYTES
    assert file.stat().st_mode & 0o777 == 0o600


def test_models_are_listed_with_their_state_and_another_one_answers(terminal: Open, talker: Talker) -> None:
    talker.says("I am another.")
    chat = talk(terminal, talker)
    chat.type(f"/model{ENTER}")
    shown = chat.wait_for(SECOND)
    assert re.search(rf"\* +{FIRST} +ready +4,000 tokens", shown)
    chat.type(f"/model {SECOND}{ENTER}")
    chat.wait_for(f"{SECOND} answers from now on")
    chat.type(f"Who are you?{ENTER}")
    chat.wait_for("I am another.")
    chat.type(f"/model{ENTER}")
    chat.wait_for(lambda shown: re.search(rf"\* +{SECOND}", shown) is not None)
    chat.type(f"/nonsense{ENTER}")
    chat.wait_for("/nonsense is no command")
    chat.type(f"/model nobody{ENTER}")
    chat.type(f"Who?{ENTER}")
    chat.wait_for("answered 404")
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0


def events(*deltas: dict[str, object]) -> str:
    told = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    told.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in told) + "data: [DONE]\n\n"


THINKS = events(
    {"role": "assistant"},
    {"reasoning_content": "Let me see.\nIt is "},
    {"reasoning_content": "easy."},
    {"content": "Forty-"},
    {"content": "two."},
    {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris\x1b[2J"}'}}]},
)


def test_any_openai_address_will_do_and_thoughts_can_be_folded(
    terminal: Open, scripted: Callable[..., Scripted]
) -> None:
    server = scripted({"/v1/models": (200, {"data": [{"id": "m"}]}), "/v1/chat/completions": (200, THINKS)})
    chat = terminal("chat", "--url", server.url)
    chat.wait_for(READY)
    chat.type(f"Think{ENTER}")
    shown = chat.wait_for("tokens, ")
    assert "Let me see.\nIt is easy.\n\nForty-two.\n" in shown
    assert 'calls weather({"city": "Paris[2J"})' in shown
    chat.type(f"/fold{ENTER}Again{ENTER}")
    shown = chat.wait_for("(/thoughts shows it)")
    assert shown.count("It is easy.") == 1
    chat.wait_for(lambda shown: shown.count("tokens, ") == 2)
    chat.type(f"/thoughts{ENTER}")
    chat.wait_for(lambda shown: shown.count("It is easy.") == 2)
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0


def piped(question: str, *words: str):
    return CliRunner().invoke(app, ["chat", *words], input=question, catch_exceptions=False)


@pytest.mark.usefixtures("folder")
def test_without_a_terminal_a_question_comes_from_a_pipe_and_the_plain_answer_goes_to_one(talker: Talker) -> None:
    talker.says("Some **bold** words.\n\n- one\x1b[2J\n", "Forty-two.")
    done = piped("What is it?\n", "--url", talker.url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Some **bold** words.\n\n- one[2J\n", "")
    assert "user\nWhat is it?\n" in talker.asked(0)
    told = json.loads(piped("Again", "--url", talker.url, "--json", "--max-tokens", "7").stdout)
    assert told["choices"][0]["message"]["content"] == "Forty-two."
    assert talker.run(1).submit.max_tokens == 7


@pytest.mark.usefixtures("folder")
def test_what_fails_without_a_terminal_is_one_line(talker: Talker, scripted: Callable[..., Scripted]) -> None:
    for question, words, said in (
        ("", ("--url", talker.url), "standard input has no question"),
        ("Hello", ("nobody", "--url", talker.url), "answered 404"),
        ("Hello", ("--url", "http://127.0.0.1:9"), "nothing answers at http://127.0.0.1:9"),
    ):
        done = piped(question, *words)
        assert (done.exit_code, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert said in line
    several = scripted({"/v1/models": (200, {"data": [{"id": "m"}, {"id": "n"}]})})
    assert "say which with chorus chat MODEL: m, n" in piped("Hello", "--url", several.url).stderr
    cut = scripted({"/v1/chat/completions": (200, THINKS.partition("two.")[0])})
    assert "ended the answer early" in piped("Hello", "m", "--url", cut.url).stderr
