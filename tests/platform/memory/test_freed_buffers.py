from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chorus.platform.accelerator import device
from chorus.platform.memory.freed_buffers import FreedBuffers


@pytest.mark.parametrize(("backend", "metal", "given"), [("cpu", False, 1), ("metal", True, 1), ("cuda", False, 0)])
def test_what_a_step_freed_goes_back_once_where_nobody_bounds_it(
    backend: str, metal: bool, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "backend", lambda: backend)
    cleared: list[str] = []
    mx: Any = SimpleNamespace(
        metal=SimpleNamespace(is_available=lambda: metal), clear_cache=lambda: cleared.append("cleared")
    )
    buffers = FreedBuffers(mx)
    buffers.give_back()
    buffers.used()
    assert buffers.any is bool(given)
    buffers.give_back()
    buffers.give_back()
    assert len(cleared) == given
    assert not buffers.any
