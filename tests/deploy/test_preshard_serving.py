"""Serving from one folder per rank, by real processes: the same text, and no rank reads what another one holds."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from chorus.cli.models_preshard import write_parts
from chorus.engine.lifecycle.group import form_group
from chorus.engine.ranks.followers import CannotForm
from chorus.models import LocalModel, tensor_index
from chorus.models.preshard.folder import WEIGHTS_FILE, Division
from chorus.models.values import ignore_progress
from tests.support.alone import text_alone
from tests.support.architectures import ARCHITECTURES
from tests.support.ranks import Ranks
from tests.support.server import ChorusServer
from tests.support.tiny_model import override, write_random_model, write_tiny_model

PROMPTS = ("once upon a time", "the answer is", "a b c")
# Wide enough that weights outweigh whatever else a process reads.
WIDE = override(
    ARCHITECTURES["llama"],
    {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 1024,
        "max_position_embeddings": 1024,
    },
)
# What a compiler that a rank starts has read counts as read by the rank.
INTERPRETED = {"MLX_DISABLE_COMPILE": "1"}
PIPELINE, TENSOR = Division("pipeline", (6, 2)), Division("tensor", (3, 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = tmp_path_factory.mktemp("wide") / "wide"
    return LocalModel(str(folder), "test/wide", write_random_model(folder, WIDE, tokenizer=True))


@pytest.fixture(scope="module")
def texts(model: LocalModel) -> list[str]:
    """Of the original."""
    return [text_alone(model.path, prompt, 16) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What a rank reads besides weights: programs and libraries."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_tiny_model(folder / "tiny", "llama", vocab_size=512)
    with Ranks(folder) as ranks, contextlib.ExitStack() as cleanup:
        addresses = ranks.addresses(2)
        rank = ranks.follower(1, addresses[1])
        form_group(ranks.spec(model, addresses), lambda fraction: None, cleanup)
        return _bytes_read(rank)


@pytest.fixture(scope="module", params=[PIPELINE, TENSOR], ids=lambda division: division.parallel)
def parts(
    request: pytest.FixtureRequest, model: LocalModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Division, Path]]:
    folder = tmp_path_factory.mktemp("cut") / "parts"
    write_parts(model, request.param, folder, ignore_progress)
    yield request.param, folder
    shutil.rmtree(folder)


def weight_bytes(folder: Path) -> int:
    return sum(info.nbytes for info in tensor_index(folder).values())


@pytest.mark.linux("counts of bytes read")
def test_the_text_is_the_same_and_each_rank_reads_its_own_bytes_only(
    parts: tuple[Division, Path], texts: list[str], noise: int, tmp_path: Path
) -> None:
    division, folder = parts
    words = ["--threads", "1", "--transport", _transport(division)]
    with ChorusServer(folder, words, tmp_path, INTERPRETED) as server:
        info = server.get("/model/info")
        assert info["id"] == "test/wide"
        assert info["parallel"] == division.parallel
        assert [server.text(prompt) for prompt in PROMPTS] == texts
        own = weight_bytes(folder / "rank-1")
        assert _bytes_read(server.process_named("chorus.rank")) - noise == pytest.approx(own, rel=0.1)


def test_another_plan_is_refused_before_anything_starts(
    parts: tuple[Division, Path], refusal: Callable[..., str]
) -> None:
    division, folder = parts
    other = "tensor" if division.parallel == "pipeline" else "pipeline"
    for arguments, words in (
        (["--split", "5,3"], f"was made for {division} and the plan is now the split 5,3; make it again"),
        (["--ranks", "3"], f"was made for 2 ranks ({division}), not for 3"),
        (["--parallel", other, "--ranks", "2"], f"was made for {division}, not for parallel {other}"),
    ):
        assert words in refusal("serve", str(folder), "--port", "0", *arguments)


def test_a_damaged_part_is_refused_by_its_rank_with_the_file_named(
    parts: tuple[Division, Path], tmp_path: Path
) -> None:
    """Where ranks are a pipeline by themselves, and where they are slices by a server with all its processes."""
    division, folder = parts
    copied = Path(shutil.copytree(folder, tmp_path / "damaged"))
    file = copied / "rank-1" / WEIGHTS_FILE
    with file.open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))
    said = _refused_by_a_rank(copied, division, tmp_path)
    assert "rank 1" in said
    assert f"{file} does not match its checksum; copy the folder again" in said


def _refused_by_a_rank(folder: Path, division: Division, place: Path) -> str:
    if division.parallel == "tensor":
        server = ChorusServer(folder, ["--threads", "1", "--transport", _transport(division)], place)
        assert server.wait_for_exit() == 1
        return server.log
    with Ranks(place) as ranks, contextlib.ExitStack() as cleanup:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1])
        with pytest.raises(CannotForm) as refused:
            form_group(ranks.spec(folder, addresses, split=division.parts), lambda fraction: None, cleanup)
        return str(refused.value)


def _transport(division: Division) -> str:
    return "grpc" if division.parallel == "pipeline" else "ring"


def _bytes_read(process: psutil.Process | Popen[bytes]) -> int:
    counters = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return int(counters["rchar"])
