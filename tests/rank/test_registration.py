from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from chorus.models import architectures

CALLED: list[str] = []


def bring_one() -> None:
    CALLED.append("brought")


def bring_trouble() -> None:
    raise ValueError("no such layer")


def install(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    entry = EntryPoint("theirs", f"{__name__}:{function}", architectures.ENTRY_POINTS)
    monkeypatch.setattr(architectures, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_a_package_brings_its_architectures_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "bring_one")
    architectures.register_packages()
    assert CALLED == ["brought"]


def test_a_package_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "bring_trouble")
    with pytest.raises(RuntimeError, match=r"entry point theirs .* no such layer"):
        architectures.register_packages()
