"""What commands say that end before they start anything, asked in the test's own process: that costs no start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chorus.cli import app


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`refusal("serve", "nowhere")`: what it said before it ended with code 1, as one line."""

    def ask(*words: str) -> str:
        monkeypatch.setattr(asyncio, "run", lambda *_, **__: pytest.fail("it starts"))
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        assert ended.value.code == 1
        said = capsys.readouterr()
        text = " ".join((said.out + said.err).split())
        assert "Traceback" not in text
        return text

    return ask
