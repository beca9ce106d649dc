"""What readers of older projects type from habit, with our name in place of their program's: it works, or one line says
what to type."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chorus.cli.older_words import OLDER_COMMANDS, OLDER_FLAGS
from chorus.config.settings import known_keys
from chorus.config.sources import load
from tests.cli.test_documented_commands import fault, helps
from tests.readers.conftest import Typed
from tests.readers.tables import HERE
from tests.readers.test_coming_from import value_of

LOCALAI_TOKEN = "b3RwOgogIGRodDoKICAgIGludGVydmFsOiAzNjAK"
MINIMAX = "mlx-community/MiniMax-M2.1-4bit"

SAYS = [
    # The answer is one line, with what to type.
    (
        "localai",
        "chorus worker mlx-distributed --hostfile hosts.json --rank 0 --addr 192.168.1.10:50051",
        "LOCALAI_GRPC_AUTH_TOKEN here and for LocalAI, or say --insecure",
    ),
    ("localai", f"TOKEN={LOCALAI_TOKEN} chorus worker p2p-mlx", "make one with `chorus token new` and use it here"),
    ("localai", "chorus worker p2p-mlx", "set TOKEN, or give --token-file FILE (chorus token new makes one)"),
    ("localai", "chorus worker mlx-distributed --hostfile hosts.json", "Give --rank, or set MLX_RANK"),
    ("localai", "chorus worker mlx-distributed --rank 1", "give --hostfile FILE"),
    ("localai", "chorus worker mlx-distributed --hostfile hosts.json --rank 5", "there is no rank 5"),
    (
        "localai",
        "MLX_DISTRIBUTED_HOSTFILE=hosts.json MLX_RANK=1 chorus serve",
        "is started by: chorus worker mlx-distributed --hostfile hosts.json --rank 1",
    ),
    (
        "localai",
        "chorus worker mlx-distributed --hostfile matrix.json --rank 1 --backend jaccl --coordinator 192.168.1.10:5555",
        "write each host's ips too",
    ),
    ("localai", "chorus run --p2p", "there is no command run: say chorus serve MODEL"),
    ("ring_project", "chorus start", "there is no command start: say chorus up"),
    ("ring_project", "chorus stop", "there is no command stop: say chorus down"),
    ("ring_project", "chorus serve", "192.168.5.2 is another machine"),
    ("ring_project", "API_PORT=99999 chorus up", "API_PORT: should be less than or equal to 65535, got '99999'"),
    ("ring_project", "API_PORT=abc chorus up", "API_PORT: should be a valid integer"),
    ("ring_project", "NUM_DEVICES=0 chorus up", "NUM_DEVICES: should be greater than or equal to 1, got '0'"),
    ("ring_project", "NUM_DEVICES=3 chorus up", "NUM_DEVICES: expected 2, the number of devices, got 3"),
    ("ring_project", "LOG_LEVEL=INVALID chorus up", "LOG_LEVEL: should be 'debug', 'info', 'warning' or 'error'"),
    ("ring_project", "DISTRIBUTED_BACKEND=gloo chorus up", "DISTRIBUTED_BACKEND: should be 'auto', 'grpc', 'ring'"),
    ("ring_project", "chorus config check .env", "`chorus config show` in its folder reads and checks them"),
    ("ring_project", "chorus config check hosts.json", "ok (rank 0 192.168.5.1, rank 1 192.168.5.2)"),
    ("grpc_project", "chorus up --config distributed_config.json --ssh-key k", "IdentityFile in ~/.ssh/config"),
    ("grpc_project", "chorus up --no-workers", "chorus serve -c FILE --cluster"),
    ("grpc_project", "chorus up --no-api", "chorus join -c FILE --device-id ID"),
    (
        "grpc_project",
        "chorus config check older_config.json",
        "the form from before gRPC; expected devices",
    ),
    ("grpc_project", "chorus join --device-id mini3", "no device mini3, did you mean mini2?"),
    ("mlx_lm", f"chorus serve {MINIMAX} -c hosts.json", f"chorus up -c hosts.json {MINIMAX}"),
    ("mlx_lm", "chorus launch --hostfile hosts.json", "say chorus up MODEL -c HOSTFILE"),
    ("mlx_lm", f"chorus serve {MINIMAX} --hostfile hosts.json", "say chorus up MODEL -c HOSTFILE"),
    ("mlx_lm", f"chorus serve {MINIMAX} --host 0.0.0.0 --port 8080", "make one with `chorus keys new NAME`"),
    ("mlx_lm", f"chorus serve {MINIMAX} --temp 0.7", "serve has no --temp: say --temperature"),
]

STARTS = [
    ("ring_project", "chorus up", {"model": "mlx-community/Qwen3-14B-4bit", "devices": ["localhost", "192.168.5.2"]}),
    (
        "ring_project",
        "WORKER_HOSTS=192.168.5.2,192.168.5.3 WORKER_SSH=a@192.168.5.2,b@192.168.5.3 NUM_DEVICES=3 chorus up",
        {"engine.ranks": 3, "devices": ["localhost", "192.168.5.2", "192.168.5.3"]},
    ),
    ("grpc_project", "chorus up", {"model": "mlx-community/Qwen3-1.7B-8bit", "devices": ["mini1", "mini2"]}),
    ("grpc_project", "chorus up -c second_coordinates.json", {"devices": ["mini1", "mini2"]}),
    ("grpc_project", "chorus join --device-id mini2 --port 50051", {"devices": ["mini1", "mini2"]}),
    ("mlx_lm", f"chorus serve --model {MINIMAX} --host 127.0.0.1 --port 8080", {"model": MINIMAX, "api.port": 8080}),
    (
        "mlx_lm",
        f"chorus serve --model {MINIMAX} --env MINIMAX_PIPELINE_SPLIT=22,40 --env MLX_METAL_FAST_SYNCH=1",
        {"engine.split": (22, 40), "engine.ranks": 2},
    ),
    ("mlx_lm", f"MINIMAX_PIPELINE_SPLIT=22,40 chorus serve {MINIMAX}", {"engine.split": (22, 40), "engine.ranks": 2}),
    ("mlx_lm", f"MINIMAX_PIPELINE_SPLIT=25,37 chorus up {MINIMAX} -c hosts.json", {"engine.split": (25, 37)}),
]


@pytest.mark.parametrize(("project", "line", "text"), SAYS, ids=lambda value: str(value))
def test_a_line_typed_from_habit_says_what_to_type(
    project: str, line: str, text: str, type_line: Callable[[str, Path], Typed], folder_of: Callable[[str], Path]
) -> None:
    typed = type_line(line, folder_of(project))
    assert not typed.started
    assert text in typed.said, typed.said


@pytest.mark.parametrize(("project", "line", "settings"), STARTS, ids=lambda value: str(value))
def test_a_line_typed_from_habit_starts_what_it_started(
    project: str,
    line: str,
    settings: dict[str, object],
    type_line: Callable[[str, Path], Typed],
    folder_of: Callable[[str], Path],
) -> None:
    typed = type_line(line, folder_of(project))
    assert typed.started, typed.said
    assert typed.settings
    assert {key: value_of(typed.settings, key) for key in settings} == settings


def test_a_file_of_the_grpc_project_means_what_it_meant(folder_of: Callable[[str], Path]) -> None:
    file = folder_of("grpc_project") / "distributed_config.json"
    loaded = load(file, environment={}, folder=file.parent)
    tree = loaded.settings.model_dump(mode="json", exclude_defaults=True)
    assert [device.pop("device_id") for device in tree.pop("devices")] == ["mini1", "mini2"], (
        "the laptop is not enabled"
    )
    assert tree == {
        "model": "mlx-community/Qwen3-1.7B-8bit",
        "api": {"max_tokens": 12, "request_timeout_seconds": 60.0},
        "engine": {"ranks": 2, "transport": "grpc", "compression": "on"},
        "sampling": {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
        "sharding": {"strategy": "custom", "custom_proportions": [0.7, 0.3]},
    }
    first = loaded.settings.devices[0]
    assert (first.role, first.capabilities.memory_gb, first.capabilities.gpu_cores) == ("coordinator", 48, 20)
    idle = " ".join(loaded.warnings)
    assert "network.keepalive_time_ms" in idle
    assert "engine.max_batch bounds it" in idle
    assert "cpu_cores" not in idle, "it describes, and asks for nothing"


def test_a_slip_in_a_file_of_the_grpc_project_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "distributed_config.json"
    file.write_text('{"network": {"compresion": true}}')
    with pytest.raises(Exception, match=r"network\.compresion: no such setting; did you mean network\.compression\?"):
        load(file, environment={}, folder=tmp_path)


@pytest.mark.parametrize("command", OLDER_FLAGS)
def test_what_an_older_flag_is_answered_with_exists(command: str) -> None:
    known = helps()
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", known[command]))
    for flag, remedy in OLDER_FLAGS[command].items():
        assert flag not in options, f"{command} has {flag} now"
        for line in re.findall(r"chorus ([a-z]+(?: (?:-{0,2}[\w-]+))*)", remedy):
            assert fault(line.split(), known) is None, remedy
        for named in re.findall(r"say (--[\w-]+)", remedy):
            assert named in options, remedy
        for key in re.findall(r"set ([\w.]+) in", remedy):
            assert key in set(known_keys()), remedy


def test_what_an_older_command_is_answered_with_exists() -> None:
    for command, remedy in OLDER_COMMANDS.items():
        assert command not in helps()
        for line in re.findall(r"chorus ([^,]+)", remedy):
            assert fault(line.split(), helps()) is None, remedy


def test_the_backend_that_has_no_checkout_says_how_to_install_from_one(tmp_path: Path) -> None:
    source = HERE.parents[1] / "backends" / "mlx-distributed" / "install.sh"
    script = tmp_path / "localai" / "backends" / "mlx-distributed" / "install.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(source, script)
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "install.sh CHECKOUT" in done.stderr
    assert not (script.parent / "venv").exists()


def test_no_page_and_no_hint_installs_from_an_index_that_does_not_have_it() -> None:
    root = HERE.parents[1]
    texts = [
        root / "README.md",
        *(root / "docs").rglob("*.md"),
        *(root / "src").rglob("*.py"),
        *(root / "backends").rglob("*.sh"),
    ]
    named = re.compile(r"pip install [^`\n]*mlx-chorus(?!\S* @ )")
    assert [str(text) for text in texts if named.search(text.read_text())] == []
