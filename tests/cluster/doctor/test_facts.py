"""How facts are gathered on this machine, each from where it really is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.cluster.doctor import facts, resources, software
from chorus.cluster.doctor.finding import Finding, look
from chorus.cluster.doctor.hub import Asked, endpoint
from chorus.cluster.doctor.probe import Probe, parse, run_probe
from chorus.config.sources import load_settings
from chorus.platform.memory.ledger import Ledger, own_file
from chorus.security.authority import Authority
from chorus.security.member import NODE
from tests.cluster.doctor.cases import PROBE
from tests.cluster.harness import eventually


class Answering(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests ask nobody elsewhere, and look at nobody's own folders."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def found(asked: Asked | None = None, probe: Probe | str = PROBE) -> dict[str, Finding]:
    """What doctor says of this machine, by name."""
    gathered = facts.gather(probe, asked, load_settings(None))
    return {finding.name: finding for finding in look((*software.CHECKS, *resources.CHECKS), gathered)}


def test_the_pins_are_read_from_our_own_metadata() -> None:
    requirements = ["mlx==0.32.4", "fastapi>=0.115", 'mlx[cpu]==0.9; extra == "cpu"']
    assert facts.pinned_versions(requirements) == {"mlx": "0.32.4"}
    assert {"mlx", "mlx-lm"} <= set(facts.pinned_versions(importlib.metadata.requires("mlx-chorus") or []))


def test_a_folder_of_sources_that_was_never_installed_is_examined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`PYTHONPATH=src python -m chorus.cli doctor` in a checkout."""

    def unknown(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    monkeypatch.setattr(facts.device, "installed", {"mlx": "0.32.4", "mlx-lm": "0.32.2"}.get)
    told = found()
    assert "not installed: run from" in told["chorus"].value
    assert "in a checkout of Chorus: pip install" in told["chorus"].fix
    assert (told["mlx"].value, told["mlx"].status) == ("0.32.4", "ok")


def test_hugging_face_is_online_when_it_answers_and_offline_when_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socketserver.TCPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert found(Asked(url))["Hugging Face"] == Finding("Hugging Face", f"online, {url} answers")
    gone = found(Asked(url))["Hugging Face"]
    assert gone.status == "warn"
    assert gone.value.startswith(f"offline, {url} cannot be reached (")
    assert "models that are here already, folders and .gguf files still work" in gone.value
    assert "HF_ENDPOINT" in gone.fix


def test_hugging_face_that_never_answers_is_waited_for_a_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "no answer" in (told := Asked(url, seconds=0.1).obstacle()) or "timed out" in told


def test_a_proxy_that_cannot_be_used_is_why_hugging_face_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert Asked("http://elsewhere").obstacle().startswith("Using SOCKS proxy, but the 'socksio' package")


def test_the_mirror_that_is_set_is_the_one_that_is_asked() -> None:
    assert endpoint({"HF_ENDPOINT": "https://mirror.example/ "}) == "https://mirror.example"
    assert endpoint({}) == endpoint({"HF_ENDPOINT": ""}) == "https://huggingface.co"


def test_whoever_switched_hugging_face_off_is_told_by_what() -> None:
    assert facts.switched_off({"HF_HUB_OFFLINE": "0"}) == []
    told = found()["Hugging Face"]
    assert told.value.startswith("offline, as HF_HUB_OFFLINE says")
    assert told.status == "ok"


def test_the_disk_of_a_cache_that_does_not_exist_yet_is_found(tmp_path: Path) -> None:
    assert facts.folder_of(tmp_path / "a/b").free > 0
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_place_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert facts.folder_of(tmp_path / "a/b").problem == f"{tmp_path / 'a'} is no folder"


def test_a_state_folder_that_others_may_write_to_or_with_a_long_name_has_a_flaw(state: Path) -> None:
    state.mkdir(mode=0o700)
    assert facts.state_folder(state).flaw in (
        "",
        "its name is too long for sockets in it, which go to a temporary folder",
    )
    state.chmod(0o777)
    assert facts.state_folder(state).flaw == "others may write to it"
    long = state / ("x" * 100)
    long.mkdir(mode=0o700)
    assert "too long for sockets" in facts.state_folder(long).flaw


def test_what_a_download_left_behind_is_found_and_one_under_way_is_not(tmp_path: Path) -> None:
    left, running, whole = (tmp_path / name for name in ("a.part", "b.incomplete", "c.safetensors"))
    for path in (left, running, whole):
        path.write_bytes(b"x" * 10_000)
    os.utime(left, (1.0, 1.0))
    os.utime(whole, (1.0, 1.0))
    (entry,) = facts.unfinished([tmp_path, tmp_path / "nowhere"], running.stat().st_mtime)
    assert entry[0] == left
    assert entry[1] >= 10_000


def test_a_stopped_process_that_holds_a_booking_is_found(state: Path) -> None:
    """As Ctrl-Z leaves a server."""
    book = "import sys; from pathlib import Path; from chorus.platform.memory.ledger import Ledger, own_file; "
    book += "Ledger(own_file(), 10**9).book('group', 1000, 'tiny'); print('booked', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", book], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"booked\n"
            assert facts.booked(own_file()) == (facts.Booked("tiny", 1000, process.pid),)
            process.send_signal(signal.SIGSTOP)
            assert eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            told = found()["bookings"]
            assert facts.booked(own_file()) == (facts.Booked("tiny", 1000, process.pid, stopped=True),)
        finally:
            process.kill()
    assert "MiB for 1" in told.value
    assert facts.booked(own_file()) == (), "its process is gone"


def test_a_ledger_in_a_folder_that_is_none_is_told(state: Path) -> None:
    Ledger(own_file(), 1).bookings()
    own_file().mkdir()
    assert "memory cannot be booked" in str(facts.booked(own_file()))


def test_a_port_that_another_program_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("CHORUS_API__PORT", str(other.getsockname()[1]))
        told = found()["API port"]
        assert told.value == f"{other.getsockname()[1]}, taken by another program"
    assert found()["API port"].value.endswith("free")


def test_how_long_a_nodes_certificate_is_good_is_read_from_it(state: Path, tmp_path: Path) -> None:
    assert facts.certificate_seconds(state / "identity") is None
    Authority.create(tmp_path / "authority").issue(state / "identity", "mini", NODE)
    assert facts.certificate_seconds(state / "identity") == pytest.approx(180 * 86400, abs=2 * 86400)


def test_memory_pressure_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    assert facts.memory_pressure(tmp_path) is None
    (tmp_path / "proc/pressure/memory").write_text("some avg10=0.00 avg60=12.50 avg300=3.00 total=1\nfull avg10=0.00\n")
    assert facts.memory_pressure(tmp_path) == 12.5
    (tmp_path / "proc/pressure/memory").write_text("nonsense")
    assert facts.memory_pressure(tmp_path) is None


def test_other_output_before_the_figures_is_skipped() -> None:
    text = json.dumps(PROBE.__dict__)
    assert parse(f"a library says hello\n{text}\n") == PROBE
    assert "something else" in str(parse("nonsense"))
    assert "something else" in str(parse(""))


def test_the_probe_measures_this_machine(blas_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(blas_cache))
    probe = run_probe()
    assert isinstance(probe, Probe), probe
    assert probe.gflops > 0
    assert "ring" in probe.collectives


def test_a_probe_that_fails_gives_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORUS_BLAS", "nosuchblas")
    assert "CHORUS_BLAS=nosuchblas is unknown" in str(run_probe())
