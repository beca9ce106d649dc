"""`chorus worker mlx-distributed` reads the settings that `chorus serve` reads: typed as people do, nothing started."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from chorus.cli import app
from chorus.config.engine import EngineSpec
from chorus.config.front_end import ApiSettings
from chorus.deploy.hostfile import serve as by_hand
from chorus.localai import launch
from chorus.localai.errors import LoadFailed
from chorus.localai.plan import plan_load
from chorus.messages.proto.localai_pb2 import ModelOptions
from tests.support.ports import listening_port
from tests.support.tiny_model import write_tiny_model

LAYERS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=LAYERS)


@dataclass
class Started:
    """What would have been started."""

    specs: list[EngineSpec] = field(default_factory=list)
    front_ends: list[ApiSettings] = field(default_factory=list)
    followers: list[Sequence[str]] = field(default_factory=list)
    patience: list[float | None] = field(default_factory=list)
    localai: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """Runs a command up to where it would start processes, in a folder of its own with a hostfile of two ranks."""
    seen = Started()
    programs, front_end = by_hand.rank_programs, by_hand.front_end_program

    def leader(spec: EngineSpec) -> Any:
        seen.specs.append(spec)
        return programs(spec)

    def api(settings: ApiSettings, folder: Path) -> Any:
        seen.front_ends.append(settings)
        return front_end(settings, folder)

    async def nothing(*_: Any) -> None:
        pass

    async def follows(place: by_hand.HandRank, folders: Sequence[Path], start_timeout: float | None) -> None:
        seen.followers.append(by_hand.rank_command(place, folders))
        seen.patience.append(start_timeout)

    monkeypatch.setattr(by_hand, "rank_programs", leader)
    monkeypatch.setattr(by_hand, "front_end_program", api)
    monkeypatch.setattr(by_hand, "run_announced", nothing)
    monkeypatch.setattr(by_hand, "_follow", follows)
    monkeypatch.setattr(launch, "lead", lambda *flags, **more: seen.localai.append({"flags": flags, **more}))
    monkeypatch.chdir(tmp_path)
    write_hosts(tmp_path / "hosts.json", 2)
    return seen


def write_hosts(file: Path, count: int) -> None:
    file.write_text(json.dumps([f"127.0.0.1:{5000 + rank}" for rank in range(count)]))


def worker(*words: str, hostfile: str | None = "hosts.json", **variables: str) -> Result:
    command = ["worker", "mlx-distributed", *(("--hostfile", hostfile) if hostfile else ()), *words]
    return CliRunner().invoke(app, command, env={"MLX_DISTRIBUTED_ADDR": f"localhost:{listening_port()}", **variables})


def led(started: Started, *words: str, **variables: str) -> EngineSpec:
    result = worker("--rank", "0", *words, **variables)
    assert result.exit_code == 0, result.output
    return started.specs[-1]


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ((), {"MINIMAX_PIPELINE_SPLIT": "3,1"}),
        ((), {"CHORUS_ENGINE__SPLIT": "3,1"}),
        (("--split", "3,1"), {}),
        (("--split", "3,1"), {"MINIMAX_PIPELINE_SPLIT": "2,2"}),
    ],
)
def test_a_split_means_what_it_means_in_serve(
    started: Started, model: Path, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    assert led(started, "--model", str(model), *words, **variables).split == (3, 1)


def test_a_split_stays_where_variable_and_flag_name_the_same_hostfile(started: Started, model: Path) -> None:
    variables = {"MLX_DISTRIBUTED_HOSTFILE": "hosts.json", "MINIMAX_PIPELINE_SPLIT": "3,1"}
    assert led(started, "--model", str(model), **variables).split == (3, 1)


def test_the_settings_file_and_dotenv_of_the_folder_are_read(started: Started, model: Path) -> None:
    Path("chorus.yaml").write_text(
        "sharding: {strategy: custom, custom_proportions: [0.75, 0.25]}\n"
        "cache: {memory: 1GB, per_key: true}\napi: {aliases: [mine]}\nsampling: {temperature: 0.3}\n"
    )
    Path(".env").write_text("CHORUS_ENGINE__CONTEXT=64\n")
    spec = led(started, "--model", str(model))
    assert (spec.split, spec.context, spec.cache.memory, spec.cache.per_key) == ((3, 1), 64, 10**9, True)
    (served,) = started.front_ends[-1].models
    assert "mine" in served.aliases
    assert served.sampling.temperature == 0.3


def test_a_settings_file_can_name_everything(started: Started, model: Path) -> None:
    """Devices, model and rank in one file: no hostfile and hardly a flag is needed."""
    Path("mine.yaml").write_text(
        f"model: {model}\nengine: {{transport: grpc, split: [1, 3]}}\n"
        "devices:\n  - {device_id: a, hostname: 127.0.0.1, port: 5000}\n"
        "  - {device_id: b, hostname: 127.0.0.1, port: 5001}\n"
    )
    result = worker("-c", "mine.yaml", hostfile=None, MLX_RANK="0")
    assert result.exit_code == 0, result.output
    spec = started.specs[-1]
    assert (spec.ranks, spec.split, spec.transport) == (("127.0.0.1:5000", "127.0.0.1:5001"), (1, 3), "grpc")


def test_tensors_travel_as_the_flag_the_variable_or_the_hostfile_says_and_else_by_ring(
    started: Started, model: Path
) -> None:
    named = ("--model", str(model))
    assert led(started, *named).transport == "ring"
    assert led(started, *named, MLX_DISTRIBUTED_BACKEND="grpc").transport == "grpc"
    assert led(started, *named, "--backend", "ring", MLX_DISTRIBUTED_BACKEND="grpc").transport == "ring"
    Path("hosts.json").write_text(json.dumps({"backend": "any", "hosts": ["127.0.0.1:1", "127.0.0.1:2"]}))
    assert led(started, *named).transport == "grpc"
    assert led(started, *named, "--parallel", "tensor", "--weights", "2,1").transport == "ring"


def test_rank_0_answers_where_the_address_or_the_apis_settings_say(started: Started, model: Path) -> None:
    port = listening_port()
    result = worker("--rank", "0", "--model", str(model), MLX_DISTRIBUTED_ADDR="", API_PORT=str(port))
    assert (result.exit_code, started.front_ends[-1].port) == (0, port)
    result = worker("--rank", "0", "--model", str(model), API_PORT="1")
    assert "API_PORT) has no effect: rank 0 answers at localhost:" in result.output
    assert started.front_ends[-1].port != 1


def test_a_model_that_the_settings_name_is_served_and_without_one_localai_says_which(
    started: Started, model: Path
) -> None:
    assert worker("--rank", "0", MODEL_REPO=str(model)).exit_code == 0
    assert (len(started.specs), started.localai) == (1, [])
    result = worker("--rank", "0", "--split", "3,1", "--start-timeout", "0")
    assert result.exit_code == 0, result.output
    (lead,) = started.localai
    assert (lead["engine"]["split"], lead["engine"]["transport"]) == ("3,1", "ring")
    assert lead["engine"]["start_timeout_seconds"] == by_hand.FOR_EVER_SECONDS


def test_an_address_that_others_reach_needs_a_key_or_the_option_that_the_error_names(
    started: Started, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHORUS_KEYS_FILE", str(tmp_path / "keys.json"))
    command = ("--rank", "0", "--model", str(model), "--addr")
    result = worker(*command, "192.168.1.10:50051")
    assert result.exit_code == 1
    assert "or allow everybody with --insecure" in " ".join(result.output.split())
    result = worker(*command, f"0.0.0.0:{listening_port()}", "--insecure")
    assert (result.exit_code, len(started.specs)) == (0, 1), result.output
    assert worker("--rank", "0", "--insecure").exit_code == 0
    assert started.localai[-1]["flags"][-1] is True


def test_a_port_that_is_taken_is_told_with_the_option_that_changes_it(started: Started, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = worker("--rank", "0", "--model", str(model), "--addr", f"127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 1
    assert "choose another with --addr" in " ".join(result.output.split())


def test_a_follower_reads_what_concerns_it(started: Started) -> None:
    variables = {"CHORUS_ENGINE__THREADS": "3", "LOG_LEVEL": "WARN", "CHORUS_ENGINE__TRUST_REMOTE_CODE": "true"}
    variables |= {"CHORUS_LOG__JSON_LINES": "true"}
    assert worker("--rank", "1", **variables).exit_code == 0
    command = " ".join(started.followers[-1])
    assert "--rank 1 --own-store --insecure --log-level warning --log-json" in command
    assert "--threads 3 --trust-remote-code" in command


def test_a_follower_has_the_folders_that_its_own_command_names(started: Started, model: Path) -> None:
    Path("link").symlink_to(model)
    assert worker("--rank", "1", "--model", "./link", "--model", str(model)).exit_code == 0
    assert " ".join(started.followers[-1]).count(f"--own-model {model}") == 2
    assert worker("--rank", "1", CHORUS_MODEL=str(model)).exit_code == 0
    assert " ".join(started.followers[-1]).count(f"--own-model {model}") == 1
    assert worker("--rank", "1", CHORUS_MODEL="some/model-that-only-the-leader-fetches").exit_code == 0
    assert "--own-model" not in started.followers[-1]
    result = worker("--rank", "1", "--model", "./nowhere")
    assert result.exit_code == 1
    assert f"There is no folder or file {Path('nowhere').absolute()}; check the path" in result.output


@pytest.mark.parametrize(
    ("words", "patience"), [((), None), (("--start-timeout", "0"), None), (("--start-timeout", "12"), 12.0)]
)
def test_a_follower_waits_for_its_leader_as_long_as_it_takes_unless_it_is_told_otherwise(
    started: Started, words: tuple[str, ...], patience: float | None
) -> None:
    """LocalAI's own start script passes no limit, and its leader comes when somebody asks for a model."""
    assert worker("--rank", "1", *words, CHORUS_ENGINE__START_TIMEOUT_SECONDS="30").exit_code == 0
    assert started.patience == [patience]


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ((), {"MINIMAX_PIPELINE_SPLIT": "22,8"}, "MINIMAX_PIPELINE_SPLIT: split 22,8 has 2 entries, and"),
        ((), {"CHORUS_ENGINE__SPLIT": "22,8"}, "CHORUS_ENGINE__SPLIT: split 22,8 has 2 entries, and"),
        (("--split", "4"), {}, "split 4 has 1 entry, and"),
        (("--weights", "2,1"), {}, "weights 2,1 has 2 entries, and"),
        ((), {"CHORUS_SHARDING__CUSTOM_PROPORTIONS": "0.7,0.3"}, "custom_proportions 0.7,0.3 has 2 entries, and"),
    ],
)
def test_a_list_with_too_few_entries_is_told_with_the_hostfile(
    started: Started, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    write_hosts(Path("three.json"), 3)
    result = worker("--rank", "0", "--model", "m", *words, hostfile="three.json", **variables)
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert said in text
    assert "three.json lists 3 hosts: give one for each, rank 0 first" in text


@pytest.mark.parametrize(
    ("words", "hostfile", "variables", "said"),
    [
        (("--rank", "0"), None, {}, "give --hostfile FILE"),
        ((), "hosts.json", {}, "Give --rank, or set MLX_RANK"),
        (("--rank", "2"), "hosts.json", {}, "hosts.json lists 2 hosts, so there is no rank 2"),
        (("--rank", "0", "--model", "m", "--backend", "mpi"), "hosts.json", {}, "with a hostfile use"),
        (("--rank", "0", "--model", "m"), "hosts.json", {"CHORUS_SHARDING__STRATEGY": "balanced"}, "`chorus up`"),
        (("--rank", "0", "--model", "m", "--backend", "rnig"), "hosts.json", {}, "expected one of"),
        (
            ("--rank", "0", "--model", "m", "--backend", "jaccl"),
            "hosts.json",
            {},
            "hosts.json: jaccl needs the RDMA",
        ),
        (("--rank", "0", "--model", "m", "--addr", "a:b"), "hosts.json", {}, "--addr: expected a port from 1 to 65535"),
    ],
)
def test_what_cannot_be_is_one_line_with_a_remedy(
    started: Started, words: tuple[str, ...], hostfile: str | None, variables: dict[str, str], said: str
) -> None:
    result = worker(*words, hostfile=hostfile, **variables)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


MATRIX = [[None, "rdma_en5"], ["rdma_en4", None]]
WITH_ADDRESSES = (
    '[{"ips": ["192.168.1.10:5555"], "rdma": [null, "rdma_en5"]}, '
    '{"ips": ["192.168.1.11:5555"], "rdma": ["rdma_en4", null]}]'
)


@pytest.mark.parametrize(
    "command",
    [
        ("config", "check", "devices.json"),
        ("worker", "mlx-distributed", "--hostfile", "devices.json", "--rank", "1"),
        (
            "worker",
            "mlx-distributed",
            "--hostfile",
            "devices.json",
            "--rank",
            "0",
            "--backend",
            "jaccl",
            "--model",
            "m",
        ),
        ("up", "-c", "devices.json"),
        ("serve", "-c", "devices.json"),
        ("serve", "--cluster", "-c", "devices.json"),
    ],
)
def test_a_matrix_of_devices_alone_is_refused_by_all_with_the_form_that_would_do(
    started: Started, command: tuple[str, ...]
) -> None:
    """jaccl's own file has the devices and no addresses, and ranks of Chorus are reached by theirs."""
    Path("devices.json").write_text(json.dumps(MATRIX))
    result = CliRunner().invoke(app, list(command))
    said = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "rank 0 has RDMA devices and no address for others to reach it: write each host's ips too" in said
    assert WITH_ADDRESSES in said


def test_the_form_that_a_matrix_is_refused_with_is_right(started: Started, model: Path) -> None:
    Path("hosts.json").write_text(WITH_ADDRESSES)
    assert CliRunner().invoke(app, ["config", "check", "hosts.json"]).exit_code == 0
    spec = led(started, "--model", str(model), "--backend", "jaccl")
    assert (spec.rdma_devices, spec.parallel) == (((None, "rdma_en5"), ("rdma_en4", None)), "tensor")


def test_localai_refuses_it_with_the_same_form(started: Started) -> None:
    Path("devices.json").write_text(json.dumps(MATRIX))
    request = ModelOptions(Model="m", Options=["hostfile:devices.json", "distributed_backend:jaccl"])
    with pytest.raises(LoadFailed, match=re.escape(WITH_ADDRESSES)):
        plan_load(request, {}, {})


def test_rank_0_serves_all_models_that_its_command_or_its_settings_name(started: Started, model: Path) -> None:
    shutil.copytree(model, "other")
    result = worker("--rank", "0", "--model", str(model), "--model", "./other")
    assert result.exit_code == 0, result.output
    Path("chorus.json").write_text(json.dumps({"models": [str(model), {"source": "./other", "aliases": ["again"]}]}))
    assert worker("--rank", "0", "-c", "chorus.json").exit_code == 0
    typed, written = started.front_ends
    assert [each.id for each in typed.models] == [each.id for each in written.models] == [model.name, "other"]
    assert "again" in written.models[1].aliases
    assert started.localai == []


@pytest.mark.parametrize(
    ("settings", "words", "told"),
    [
        ({}, ("--backend", "jaccl"), "ranks of a hostfile meet over RDMA at one place, for one model"),
        ({"nodes": ["mini"]}, (), "nodes: a hostfile lists ranks, not nodes that joined"),
        ({"engine": {"ranks": 3}}, (), "3 ranks are asked for, and the hostfile lists 2 hosts"),
    ],
)
def test_what_several_models_of_a_hostfile_cannot_all_have_is_refused(
    started: Started, model: Path, settings: dict[str, Any], words: tuple[str, ...], told: str
) -> None:
    Path("chorus.json").write_text(json.dumps({"models": [{"source": str(model), **settings}, "smollm2-135m"]}))
    result = worker("--rank", "0", "-c", "chorus.json", *words)
    assert result.exit_code == 1
    assert told in " ".join(result.output.split())
    assert not started.specs
