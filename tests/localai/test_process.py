"""The process as LocalAI starts, guards and stops it."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest

from chorus.localai.engine_host import STOP_SECONDS
from chorus.localai.server import GOODBYE_SECONDS
from tests.localai.process import COMMAND, Backend
from tests.localai.table import Client

FOLDER = Path(__file__).parents[2] / "backends" / "mlx-distributed"
MEGABYTE = 1024 * 1024


def test_the_backend_folder_is_started_with_only_an_address(tmp_path: Path) -> None:
    """A copy, as LocalAI has it, so that no checkout is near; Chorus is found on the PATH."""
    folder = tmp_path / "backends" / "mlx-distributed"
    shutil.copytree(FOLDER, folder)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHON_GRPC_MAX_WORKERS": "4"}
    with Backend(tmp_path, command=[str(folder / "run.sh")], cwd=folder, environment=environment) as backend:
        assert "run.sh" not in " ".join(psutil.Process(backend.process.pid).cmdline()), "run.sh must hand over"
        assert "PYTHON_GRPC_MAX_WORKERS=4" in backend.log


def test_a_backend_folder_without_chorus_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "mlx-distributed"
    shutil.copytree(FOLDER, folder)
    done = subprocess.run(
        [str(folder / "run.sh"), "--addr", "127.0.0.1:1"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "install.sh" in done.stderr


def test_where_a_token_is_set_only_its_bearer_is_served(tmp_path: Path) -> None:
    with Backend(tmp_path, environment={"LOCALAI_GRPC_AUTH_TOKEN": "s3cret"}, token="s3cret") as backend:
        for token in (None, "", "other", "s3cret "):
            stranger = Client(backend.address, token)
            for call in (stranger.Health, lambda stranger=stranger: list(stranger.PredictStream(Prompt="Hi"))):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            stranger.close()
        assert backend.client.Health().message == b"OK"
        with pytest.raises(grpc.RpcError) as caught:
            backend.client.Predict(Prompt="x" * (49 * MEGABYTE))
        # It was read: had it been too large, that would be the complaint.
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_stop_takes_less_than_the_five_seconds_that_localai_waits() -> None:
    assert GOODBYE_SECONDS + STOP_SECONDS < 5


def test_a_stop_in_mid_stream_leaves_nothing_behind(tmp_path: Path, tiny_model: Path) -> None:
    with Backend(tmp_path) as backend:
        backend.load(tiny_model, "ranks:2")
        stream = backend.client.PredictStream(Prompt="on and on", IgnoreEOS=True)
        next(stream)
        children = backend.children()
        assert {child.cmdline()[2] for child in children} == {"chorus.engine", "chorus.rank", "chorus.text.grammar"}
        backend.process.send_signal(signal.SIGTERM)
        assert backend.process.wait(60) == 0
        assert not psutil.wait_procs(children, timeout=60)[1]
        with pytest.raises(grpc.RpcError):
            list(stream)


def test_the_backend_ends_with_the_process_that_started_it(tmp_path: Path, tiny_model: Path) -> None:
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    command = [sys.executable, "-c", starter, *COMMAND]
    with Backend(tmp_path, command=command, environment={"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "100ms"}) as backend:
        backend.load(tiny_model)
        family = backend.children()
        assert len(family) >= 2, "the backend and its engine"
        os.kill(backend.process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=60)
        assert not left, backend.log
        assert "is gone: ending" in backend.log


def test_an_address_that_is_taken_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        second = subprocess.run([*COMMAND, "--addr", address], capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 1
    assert f"cannot listen on {address}" in second.stderr
    assert "Traceback" not in second.stderr


def test_an_address_that_others_can_reach_needs_a_token_or_a_word(refusal: Callable[..., str]) -> None:
    said = refusal("localai", "--addr", "0.0.0.0:50051")
    assert "LOCALAI_GRPC_AUTH_TOKEN" in said
    assert "--insecure" in said


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ("--addr 127.0.0.1:1", "localai"),
        ("--backend ring --hostfile hosts.json --rank 0 --addr localhost:50051", "localai"),
        ("--backend ring --hostfile hosts.json --rank 1 --worker", "worker mlx-distributed"),
        ("--worker --backend jaccl --hostfile d.json --rank 2 --coordinator 10.0.0.1:5555", "worker mlx-distributed"),
        ("--worker --hostfile my\\ hosts.json --rank 1 --start-timeout 5 --threads 2", "worker mlx-distributed"),
    ],
)
def test_the_backend_folder_starts_every_rank_as_localai_asks_for_it(tmp_path: Path, flags: str, command: str) -> None:
    """What a worker is told reaches it, LocalAI's own flags and any that its user adds."""
    folder, told = tmp_path / "mlx-distributed", shlex.split(flags)
    shutil.copytree(FOLDER, folder)
    stand_in = folder / "venv" / "bin" / "chorus"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    said = subprocess.run(
        [str(folder / "run.sh"), *told], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.splitlines() == [*command.split(), *told]


def test_the_other_ranks_have_a_command_of_their_own(
    tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal("localai", "--hostfile", "h.json", "--rank", "2")
    assert "--rank says 2: start that with chorus worker mlx-distributed --hostfile h.json --rank 2" in said
    assert "chorus worker mlx-distributed --hostfile FILE --rank N" in refusal("localai", "--worker")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLX_RANK", "1")
    assert "environment: MLX_RANK says 1: start that with chorus worker mlx-distributed" in refusal("localai")


def test_a_worker_of_localais_p2p_is_told_what_to_use(tmp_path: Path, refusal: Callable[..., str]) -> None:
    """`local-ai worker p2p-mlx` starts every worker as rank 0, with whatever hostfile its environment names."""
    hosts, tunnels = tmp_path / "hosts.json", tmp_path / "localai_mlx_hostfile.json"
    for file in (hosts, tunnels):
        file.write_text('["10.0.0.1:5555", "10.0.0.2:5555"]')
        flags = ("--worker", "--backend", "ring", "--hostfile", str(file), "--rank", "0")
        assert "chorus worker p2p-mlx" in refusal("worker", "mlx-distributed", *flags)


@pytest.mark.parametrize("variable", ["LOCALAI_TOKEN", "LOCALAI_P2P_TOKEN", "TOKEN"])
def test_a_token_is_looked_for_where_localai_looks(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """`docker run -e TOKEN=… local-ai worker p2p-mlx`: the token of LocalAI's own p2p is known for what it is."""
    monkeypatch.setenv(variable, base64.b64encode(b"otp:\n  dht:\n    interval: 360\n    key: abc\n").decode())
    assert "token of LocalAI's own p2p" in refusal("worker", "p2p-mlx", "--mlx-listen-port", "5555")


def test_the_hostfile_of_localais_p2p_is_refused_when_a_model_is_loaded(tmp_path: Path, tiny_model: Path) -> None:
    tunnels = tmp_path / "localai_mlx_hostfile.json"
    tunnels.write_text("null")
    with Backend(tmp_path, environment={"MLX_DISTRIBUTED_HOSTFILE": str(tunnels)}) as backend:
        result = backend.client.LoadModel(Model=str(tiny_model))
        assert not result.success
        assert "chorus worker p2p-mlx" in result.message


def test_rank_zero_honours_its_flags(tmp_path: Path, tiny_model: Path) -> None:
    missing = tmp_path / "gone.json"
    missing.write_text('["127.0.0.1:5555"]')
    with Backend(tmp_path, "--hostfile", str(missing), "--backend", "grpc", "--rank", "0") as backend:
        missing.unlink()
        result = backend.client.LoadModel(Model=str(tiny_model))
        assert not result.success
        assert str(missing) in result.message
