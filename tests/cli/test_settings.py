"""What people type who know an older project or slipped on a key: it is used, or one line says what to type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from chorus.cli import app
from chorus.cli.serve import _expected_nodes
from chorus.config.sources import load_settings
from chorus.transport import catalog

WIDE = {"COLUMNS": "200"}


def typed(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(app, list(words), env={**WIDE, **variables})


@pytest.mark.parametrize("command", [("config", "show"), ("keys", "list"), ("models", "list")])
def test_a_stray_variable_is_told_once_and_ends_no_command(command: tuple[str, ...], tmp_path: Path) -> None:
    folders = {"CHORUS_CACHE": str(tmp_path), "CHORUS_STATE": str(tmp_path)}
    shown = typed(*command, CHORUS_ENGINE__TRANSPROT="grpc", CHORUS_KEYS_FILE=str(tmp_path / "keys"), **folders)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.count("CHORUS_ENGINE__TRANSPROT") == 1
    assert (
        "warning: environment: CHORUS_ENGINE__TRANSPROT has no effect: there is no such setting; did you mean "
        "CHORUS_ENGINE__TRANSPORT?" in shown.stderr
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("serve", "--prot", "1"), "--port"), (("worker", "mlx-distributed", "--hotsfile", "h.json"), "--hostfile")],
)
def test_a_slip_in_a_flag_is_an_error_with_the_nearest_one(words: tuple[str, ...], meant: str) -> None:
    shown = typed(*words)
    assert shown.exit_code == 2
    assert "No such option" in shown.output
    assert meant in shown.output


DISTRIBUTED_CONFIG: dict[str, Any] = {
    "devices": [
        {"device_id": "mini1", "hostname": "localhost", "port": 50051, "role": "coordinator"},
        {"device_id": "mini2", "hostname": "198.51.100.2", "port": 50052, "role": "worker"},
    ],
    "model": {"name": "mlx-community/Qwen3-1.7B-8bit", "provider": "huggingface"},
    "sharding": {"strategy": "memory_proportional"},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "distributed_config.json").write_text(json.dumps(DISTRIBUTED_CONFIG))
    (tmp_path / "hosts.json").write_text('["198.51.100.1:5000", "198.51.100.2:5000"]')
    return tmp_path


def test_serve_with_devices_that_are_other_machines_says_how_to_start_them_all(
    here: Path, refusal: Callable[..., str]
) -> None:
    """Who wrote two machines into a file expects both to be used."""
    assert refusal("serve", "-c", "distributed_config.json") == (
        "error: distributed_config.json: devices: mini2 (198.51.100.2) is another machine, and `chorus serve` starts "
        "every rank here; for all of them: chorus up -c distributed_config.json"
    )
    typed_beside = refusal("serve", "some/model", "-c", "distributed_config.json", "--port", "9000")
    assert typed_beside.endswith(": chorus up -c distributed_config.json some/model --port 9000")


def test_serve_with_the_variables_of_one_rank_says_how_that_rank_is_started(
    here: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sets a hostfile and a rank expects to be that rank, not to lead."""
    monkeypatch.setenv("MLX_DISTRIBUTED_HOSTFILE", "hosts.json")
    monkeypatch.setenv("MLX_RANK", "1")
    assert refusal("serve", "some/model") == (
        "error: environment: MLX_RANK: `chorus serve` starts every rank itself: leave it out; rank 1 alone is started "
        "by: chorus worker mlx-distributed --hostfile hosts.json --rank 1 --model some/model"
    )
    monkeypatch.delenv("MLX_RANK")
    monkeypatch.setenv("MLX_DISTRIBUTED_BACKEND", "ring")
    said = refusal("serve", "some/model")
    assert said.startswith("error: environment: MLX_DISTRIBUTED_HOSTFILE: 198.51.100.1 is another machine (and 1 more)")
    assert "chorus up some/model; or on each machine, as rank N: chorus worker mlx-distributed" in said
    assert said.endswith("--hostfile hosts.json --rank N --backend ring --model some/model")


def test_serve_with_the_address_of_a_rank_says_where_an_api_is_put(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_DISTRIBUTED_ADDR", "198.51.100.1:50051")
    said = refusal("serve")
    assert said.startswith(
        "error: environment: MLX_DISTRIBUTED_ADDR: that is where rank 0 of a hostfile listens (chorus"
    )
    assert said.endswith("an API from here is at: chorus serve --host 198.51.100.1 --port 50051")


def test_serve_over_rdma_alone_says_which_commands_join_machines(refusal: Callable[..., str]) -> None:
    said = refusal("serve", "--transport", "jaccl", "--ranks", "2")
    assert "chorus serve --cluster --transport jaccl; over those of a file: chorus up -c FILE" in said


def test_who_is_another_rank_of_the_file_does_not_lead(here: Path, refusal: Callable[..., str]) -> None:
    first, second = DISTRIBUTED_CONFIG["devices"]
    turned = [{**second, "role": "coordinator"}, {**first, "role": "worker"}]
    (here / "turned.json").write_text(json.dumps({"devices": turned}))
    said = refusal("serve", "--cluster", "-c", "turned.json")
    assert "mini2 is rank 0, which leads, and this machine is mini1: run this on 198.51.100.2" in said
    assert said.endswith("chorus up -c turned.json")


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_rank_by_hand_is_not_started_by_what_starts_them_all(
    command: str, here: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_RANK", "1")
    assert f"`chorus {command}` starts every rank itself: leave it out" in refusal(command, "-c", "hosts.json")


def test_nodes_and_ranks_that_contradict_each_other_are_refused(refusal: Callable[..., str]) -> None:
    said = refusal("serve", "--cluster", "--nodes", "1", "--split", "20,7,3")
    assert said == "error: --nodes 1 makes 2 ranks with this machine, and 3 are asked for: change one of them"


@pytest.mark.parametrize(
    ("ranks", "nodes", "asked", "named", "expected"),
    [(1, None, False, False, None), (3, None, False, False, 2), (3, None, False, True, None), (3, None, True, True, 2),
     (3, 4, False, False, 4), (1, None, True, False, 0)],
)  # fmt: skip
def test_a_number_of_ranks_is_a_number_of_nodes_to_wait_for(
    ranks: int, nodes: int | None, asked: bool, named: bool, expected: int | None
) -> None:
    """NUM_DEVICES or engine.ranks with --cluster: so many machines, this one among them."""
    assert _expected_nodes(load_settings(environment={"NUM_DEVICES": str(ranks)}), nodes, asked, named) == expected


def test_the_model_may_be_given_as_an_option_too(refusal: Callable[..., str]) -> None:
    """`mlx_lm.server --model X` is how its users name a model."""
    assert "error: There is no model nowhere" in refusal("serve", "--model", "nowhere")
    assert "error: There is no model nowhere" in refusal("serve", "nowhere", "--model", "nowhere")
    said = refusal("serve", "one", "--model", "another")
    assert said == "error: the model is one and --model another: give one of them"


def test_the_help_names_every_transport_that_can_be_chosen() -> None:
    shown = " ".join(typed("serve", "--help").output.replace("│", " ").split())
    said = shown.partition("How ranks exchange tensors:")[2].partition("--compression")[0]
    assert [name for name in catalog.names() if name not in said] == []


def test_somebody_elses_file_is_checked_without_the_variables_of_this_folder(here: Path) -> None:
    """`config check FILE` says what is wrong with the file, not with the `.env` that lies where one happens to be."""
    (here / ".env").write_text("API_PORT=http\n")
    (here / "chorus.yaml").write_text("model: some/model\n")
    theirs = typed("config", "check", "distributed_config.json")
    assert theirs.exit_code == 0
    assert theirs.stdout == "distributed_config.json: ok (rank 0 mini1, rank 1 mini2)\n"
    assert "read: distributed_config.json; with everything else" in theirs.stderr
    ours = typed("config", "check", "chorus.yaml")
    assert ours.exit_code == 1
    assert ".env: API_PORT: should be a valid integer" in ours.stderr
    (here / ".env").write_text("API_PORT=9000\n")
    again = typed("config", "check", str(here / "chorus.yaml"))
    assert "/chorus.yaml, .env; with everything else" in again.stderr
