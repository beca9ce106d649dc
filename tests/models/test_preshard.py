"""One folder per rank: whole, sufficient, and refused when it is not what the plan says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from chorus.models import ModelError, tensor_index
from chorus.models.preshard.folder import (
    CHECKSUMS_FILE,
    PLAN_FILE,
    VERIFIED_FILE,
    WEIGHTS_FILE,
    Division,
    open_preshard,
)
from chorus.models.preshard.write import write_preshard
from chorus.models.values import LocalModel, Progress
from chorus.rank.load import load_shard
from tests.support.tiny_model import override, write_random_model, write_tiny_model

SPLIT = (3, 2, 2)
DIVISION = Division("pipeline", SPLIT)
# Plain, tied, quantized later, experts, state spaces, shared keys, and those whose loading looks at every rank.
KINDS = (
    *("llama", "qwen2", "gpt2", "qwen3_moe", "deepseek_v3", "mamba2", "afm7", "gemma3n", "gemma4_text"),
    *("falcon_h1", "minicpm", "prism_hadamard_qwen35", "qwen3_vl_moe", "qwen3_5"),
)

COUNTED_LOAD = """
import sys
from pathlib import Path
from chorus.platform import prepare
prepare(1)
import onnx.helper, onnxruntime
from chorus.rank.load import load_shard
def read_so_far():
    return int(Path("/proc/self/io").read_text().split()[1])
before = read_so_far()
shard = load_shard(Path(sys.argv[1]), lambda _: range(int(sys.argv[2]), int(sys.argv[3])), dtype="stored")
print(read_so_far() - before, shard.weight_bytes)
"""


def tiny(folder: Path, name: str = "llama", **options: object) -> LocalModel:
    return LocalModel(name, f"test/{name}", write_tiny_model(folder / "model", name, **options))  # type: ignore[arg-type]


def split_of(model: LocalModel) -> tuple[int, int, int]:
    layers = json.loads((model.path / "config.json").read_text())
    count = (
        layers.get("num_hidden_layers")
        or layers.get("n_layer")
        or layers.get("num_layers")
        or layers["text_config"]["num_hidden_layers"]
    )
    return (count - 4, 2, 2)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write_preshard(tiny(tmp_path), SPLIT, tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize("name", KINDS)
def test_a_rank_loads_the_same_from_its_folder_as_from_the_model(name: str, tmp_path: Path) -> None:
    model = tiny(tmp_path, name, tokenizer=False)
    split = split_of(model)
    made = write_preshard(model, split, tmp_path / "parts")
    for part in made:
        layers = range(part.first_layer, part.last_layer + 1)
        folder = open_preshard(tmp_path / "parts", part.rank, Division("pipeline", split))
        whole, own = (load_shard(path, lambda _, run=layers: run, dtype="stored") for path in (model.path, folder))
        expected, found = (dict(tree_flatten(shard.stage.model.parameters())) for shard in (whole, own))
        assert set(found) == set(expected)
        assert all(mx.array_equal(found[key], expected[key]).item() for key in expected)


def test_quantized_weights_and_several_files_are_cut_as_they_are(tmp_path: Path) -> None:
    model = tiny(tmp_path, "llama", quantize={"bits": 4, "group_size": 32}, shards=3)
    write_preshard(model, SPLIT, tmp_path / "parts")
    stored = tensor_index(model.path)
    held: dict[str, bytes] = {}
    for rank in range(3):
        for name, info in tensor_index(tmp_path / "parts" / f"rank-{rank}").items():
            held[name] = info.file.read_bytes()[info.start : info.end]
            assert (info.dtype, info.shape) == (stored[name].dtype, stored[name].shape)
    assert held == {name: info.file.read_bytes()[info.start : info.end] for name, info in stored.items()}


def test_a_folder_holds_the_descriptions_the_plan_and_checksums(parts: Path) -> None:
    names = {file.name for file in (parts / "rank-1").iterdir()}
    assert {"config.json", "tokenizer.json", PLAN_FILE, CHECKSUMS_FILE, WEIGHTS_FILE} <= names
    made = json.loads((parts / "rank-1" / PLAN_FILE).read_text())
    assert (made["split"], made["rank"], made["first_layer"], made["last_layer"]) == ([3, 2, 2], 1, 2, 3)


def test_ends_lie_where_they_are_used(parts: Path) -> None:
    def outside(rank: int) -> set[str]:
        return {name for name in tensor_index(parts / f"rank-{rank}") if ".layers." not in name}

    assert outside(0) == {"lm_head.weight", "model.norm.weight"}
    assert outside(1) == {"model.norm.weight"}
    assert outside(2) == {"model.embed_tokens.weight", "model.norm.weight"}


def test_a_changed_plan_is_refused_with_the_way_out(parts: Path) -> None:
    with pytest.raises(ModelError) as caught:
        open_preshard(parts, 0, Division("pipeline", (4, 2, 1)))
    assert (
        "was made for the split 3,2,2 and the plan is now the split 4,2,1; make it again: chorus models preshard"
        in str(caught.value)
    )
    with pytest.raises(ModelError, match="made for the split 3,2,2 and the plan is now the weights 3,2,2"):
        open_preshard(parts, 0, Division("tensor", SPLIT))
    shutil.rmtree(parts / "rank-1")
    with pytest.raises(ModelError, match="holds no part for rank 1"):
        open_preshard(parts, 1, DIVISION)


def test_a_folder_copied_alone_opens_for_its_own_rank_only(parts: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(parts / "rank-2", tmp_path / "copied"))
    assert open_preshard(alone, 2, DIVISION) == alone
    with pytest.raises(ModelError, match="was made for rank 2, not for rank 0"):
        open_preshard(alone, 0, DIVISION)


def test_a_flipped_bit_is_found_though_the_size_is_right(parts: Path) -> None:
    file = parts / "rank-0" / WEIGHTS_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"model.safetensors does not match its checksum; copy the folder again"):
        open_preshard(parts, 0, DIVISION)


def test_a_truncated_or_missing_file_is_named(parts: Path) -> None:
    file = parts / "rank-0" / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model.safetensors has \d+ bytes where \d+ are expected"):
        open_preshard(parts, 0, DIVISION)
    (parts / "rank-1" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"rank-1 lacks config.json; copy the folder again"):
        open_preshard(parts, 1, DIVISION)


def test_contents_are_compared_again_only_when_a_file_has_changed(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Path] = []

    def counting(file: Path) -> str:
        compared.append(file)
        return "wrong"

    monkeypatch.setattr("chorus.models.preshard.folder.digest_of", counting)
    open_preshard(parts, 0, DIVISION)
    assert compared == []
    (parts / "rank-0" / VERIFIED_FILE).unlink()
    with pytest.raises(ModelError, match="does not match its checksum"):
        open_preshard(parts, 0, DIVISION)
    assert compared


@pytest.mark.parametrize(
    ("split", "message"),
    [((3, 2), "adds up to 5 layers where the model has 7"), ((7, 0), "every rank needs at least 1 layer")],
)
def test_a_split_that_does_not_fit_the_model_is_refused(split: tuple[int, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        write_preshard(tiny(tmp_path), split, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_a_folder_in_use_is_not_written_over(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not empty"):
        write_preshard(LocalModel("m", "m", tmp_path / "model"), SPLIT, parts)


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    model = tiny(tmp_path)

    def fail(progress: Progress) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left on device"):
        write_preshard(model, SPLIT, tmp_path / "parts", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.linux("counts of bytes read")
def test_starting_from_a_folder_reads_only_that_rank(tmp_path: Path) -> None:
    from tests.support.tiny_model import QWEN2_75M

    config = override(QWEN2_75M, {"num_hidden_layers": 6, "vocab_size": 8192})
    model = LocalModel("m", "m", write_random_model(tmp_path / "model", config))
    write_preshard(model, (3, 2, 1), tmp_path / "parts")
    folder = open_preshard(tmp_path / "parts", 1, Division("pipeline", (3, 2, 1)))
    done = subprocess.run(
        [sys.executable, "-c", COUNTED_LOAD, str(folder), "1", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    read, held = map(int, done.stdout.split())
    assert held == sum(info.nbytes for name, info in tensor_index(folder).items() if ".layers." in name)
    assert held <= read <= 1.02 * held + 200_000
