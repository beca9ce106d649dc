from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from chorus.platform.process import logs


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_for_people_holds_time_level_logger_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    fields = {"tokens": 12, "rate": 13.51234, "model": "a b"}
    logging.getLogger("chorus.engine").info("request done", extra={"fields": fields})
    line = capsys.readouterr().err
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d INFO  chorus\.engine  request done tokens=12 rate=13\.5 model="a b"\n', line
    ), line


def test_text_from_a_client_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logging.getLogger("chorus").info("bad\nline %s", "x\ry", extra={"fields": {"id": "1\n2"}})
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_json_lines_hold_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(json=True)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("chorus.api").exception("failed", extra={"fields": {"request_id": "r1", "level": "mine"}})
    (line,) = capsys.readouterr().err.splitlines()
    data = json.loads(line)
    assert (data["level"], data["logger"], data["message"], data["request_id"]) == (
        "error",
        "chorus.api",
        "failed",
        "r1",
    )
    assert "ValueError: broken" in data["traceback"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", data["time"])


def test_the_level_is_respected(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("warning")
    logging.getLogger("chorus").info("quiet")
    logging.getLogger("chorus").warning("loud")
    assert "quiet" not in capsys.readouterr().err


def test_uvicorns_access_lines_are_silenced_and_its_errors_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logging.getLogger("uvicorn.access").info("GET / 200")
    logging.getLogger("uvicorn.error").error("cannot bind")
    shown = capsys.readouterr().err
    assert "GET /" not in shown
    assert "cannot bind" in shown


def test_setting_up_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logs.setup()
    logging.getLogger("chorus").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is unknown: use one of debug"):
        logs.setup("loud")
