"""Whom a loss may be blamed on."""

from __future__ import annotations

import pytest

from chorus.platform.process.losses import Cause, cause_of


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("sequence 2 is not known here"), Cause.FAULT),
        (MemoryError(), Cause.MEMORY),
        (RuntimeError("[malloc] Unable to allocate 123 bytes."), Cause.MEMORY),
        (RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is greater than"), Cause.MEMORY),
        (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU…)"), Cause.MEMORY),
        (RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"), Cause.MEMORY),
    ],
)
def test_an_error_says_whether_memory_was_missing(error: Exception, cause: Cause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(("text", "cause"), [("memory", Cause.MEMORY), ("", Cause.OUTSIDE), ("new", Cause.OUTSIDE)])
def test_nobody_is_blamed_for_a_cause_that_we_do_not_know(text: str, cause: Cause) -> None:
    assert Cause.read(text) is cause
