from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from typer.testing import CliRunner, Result

from chorus.cli import app
from tests.models.gguf_files import TinyModel, write_tiny_gguf
from tests.models.hub_server import HubServer, Repo


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1))
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize("command", ["pull", "list", "import", "rm"])
def test_every_command_shows_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: chorus models {command}" in result.output


def test_a_model_is_imported_listed_and_removed(tiny: Path) -> None:
    imported = run("import", str(tiny), "--name", "mine", "--json")
    assert imported.exit_code == 0
    path = Path(json.loads(imported.stdout)["path"])
    assert (path / "config.json").is_file()

    listed = {line["name"]: line for line in json.loads(run("list", "--json").stdout)}
    assert listed["mine"]["kind"] == "store"
    assert listed["mine"]["bytes"] > 1000
    assert listed["smollm2-135m"]["kind"] == "catalog"
    assert listed["smollm2-135m"]["path"] is None
    assert "mine" in run("list").stdout

    assert run("rm", "mine").exit_code == 0
    assert not path.exists()
    assert tiny.is_file()


def test_a_hub_model_is_pulled_listed_and_removed_by_the_real_command(hub: HubServer, tmp_path: Path) -> None:
    weights = save({"a": np.ones(9, np.float32)})
    hub.repos["org/tiny"] = Repo({"config.json": b'{"model_type": "llama"}', "model.safetensors": weights})
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": ""}
    del environment["HF_HUB_CACHE"]

    def chorus(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from chorus.cli.models import app; app()"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    pulled = chorus("pull", "org/tiny", "--json")
    assert pulled.returncode == 0, pulled.stderr
    path = Path(json.loads(pulled.stdout)["path"])
    assert path.is_relative_to(tmp_path / "home")
    assert "org/tiny" in chorus("list", "--json").stdout
    assert chorus("rm", "org/tiny").returncode == 0
    assert not path.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder as somebody's fine-tuning left it, with more than a model needs."""
    made = tmp_path / "my-tune-0.6B"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "model.safetensors").write_bytes(save({"a": np.ones(9, np.float32)}))
    (made / "tokenizer.json").write_text("{}")
    (made / "optimizer.pt").write_bytes(b"x" * 1000)
    return made


def test_a_folder_is_imported_as_a_copy_once(folder: Path) -> None:
    imported = run("import", str(folder), "--json")
    assert imported.exit_code == 0, imported.output
    told = json.loads(imported.stdout)
    copy = Path(told["path"])
    assert told["id"] == "my-tune-0.6B"
    assert {file.name for file in copy.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chorus.json",
    }
    assert json.loads(run("import", str(folder), "--json").stdout)["path"] == str(copy)
    (folder / "model.safetensors").write_bytes(save({"a": np.zeros(9, np.float32)}))
    again = json.loads(run("import", str(folder), "--json").stdout)
    assert again["path"] != str(copy)
    named = run("import", str(folder), "--name", "my-tune-0.6B")
    assert named.exit_code == 1
    assert "is another model already" in named.stderr


def test_pulling_a_folder_says_what_it_is_and_that_nothing_was_stored(folder: Path) -> None:
    pulled = run("pull", str(folder))
    assert pulled.exit_code == 0
    assert "Nothing was stored" in pulled.stderr
    assert f"chorus models import {folder}" in pulled.stderr
    assert "is ready" not in pulled.output
    assert not any(line["kind"] == "store" for line in json.loads(run("list", "--json").stdout))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "nowhere"), "There is no nowhere; give a GGUF file, or a folder with config.json and safetensors"),
        (("import", __file__), "is not a GGUF file"),
        (("import", str(Path(__file__).parent)), "has no config.json and is no model folder"),
        (("pull", "nonsense"), "There is no model nonsense"),
        (("pull", "org/none"), "Cannot get org/none"),
        (("import", "missing.gguf"), "There is no missing.gguf"),
        (("rm", "nonsense"), "nonsense is not in the store"),
        (("rm", "org/none"), "org/none is not in the Hugging Face cache"),
        (("rm", "../outside"), "cannot name a model"),
    ],
)
def test_a_failure_is_one_clear_line_and_exit_code_1(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output


def test_removing_never_follows_a_path(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in (str(precious), "precious", "./precious", "~"):
        assert run("rm", name).exit_code == 1
    assert precious.is_dir()
