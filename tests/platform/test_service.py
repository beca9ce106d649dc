from __future__ import annotations

from pathlib import Path

import pytest

from chorus.platform import service, system
from chorus.platform.service import ServiceError
from tests.support.fake_mac import played

UNIT = "chorus-agent.service"


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Linux whose systemctl and loginctl note how they were called; the unit's file is where systemd looks."""
    monkeypatch.setattr(system, "name", lambda: "Linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for tool in ("systemctl", "loginctl"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho "{tool} $*" >> {tmp_path}/calls\n')
        (tmp_path / tool).chmod(0o755)
    return tmp_path


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    done = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return done


def test_systemd_starts_the_service_now_and_at_every_boot_and_lets_go_of_it(systemd: Path) -> None:
    said: list[str] = []
    service.install(["/bin/chorus", "join"], {"HF_HOME": "/models"}, False, said.append)
    file = systemd / "config/systemd/user" / UNIT
    assert f"wrote {file}" in said
    assert 'ExecStart="/bin/chorus" "join"' in file.read_text()
    assert calls(systemd) == [
        "loginctl enable-linger",
        "systemctl --user daemon-reload",
        f"systemctl --user enable {UNIT}",
        f"systemctl --user restart {UNIT}",
    ]
    said.clear()
    service.uninstall(said.append)
    assert said == [f"stopped {UNIT}", f"removed {file}"]
    assert calls(systemd) == [f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload"]
    assert not file.exists()


def test_a_step_that_fails_is_named_with_what_it_said(systemd: Path) -> None:
    (systemd / "systemctl").write_text("#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n")
    with pytest.raises(ServiceError, match="systemctl --user daemon-reload` failed: Failed to connect to bus"):
        service.install(["/bin/chorus", "join"], {}, False, print)


def test_a_daemon_is_for_macs(systemd: Path) -> None:
    with pytest.raises(ServiceError, match="for Macs"):
        service.install(["/bin/chorus", "join"], {}, True, print)
    assert calls(systemd) == []


def test_an_agent_needs_somebody_at_the_screen_of_its_mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mac = played(monkeypatch, tmp_path / "mac")
    (tmp_path / "mac/nobody").touch()
    with pytest.raises(ServiceError, match="add --daemon"):
        service.install(["/bin/chorus", "join"], {}, False, print)
    assert mac.loaded() == []
