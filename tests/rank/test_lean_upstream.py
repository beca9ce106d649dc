"""A rank that starts lean has the mlx-lm that everybody has: the same classes, the same models, the rest on demand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from chorus.rank.upstream.lean import SHADOWED
from tests.rank import lean_driver
from tests.support.tiny_model import write_tiny_model

REMOTE_CODE = """
from mlx_lm.utils import TokenizerWrapper, load_tokenizer, snapshot_download
from mlx_lm import load, stream_generate
from mlx_lm.models.llama import Model as Llama
from mlx_lm.models.llama import ModelArgs
from mlx_lm.tokenizer_utils import TokenizerWrapper as Real
import mlx_lm, mlx_lm.utils, sys

assert TokenizerWrapper is Real is mlx_lm.utils.TokenizerWrapper is sys.modules["mlx_lm.generate"].TokenizerWrapper
assert mlx_lm.utils._load_tokenizer is sys.modules["mlx_lm.tokenizer_utils"].load
assert mlx_lm.load is load is mlx_lm.utils.load and mlx_lm.__version__ and callable(stream_generate)
assert isinstance(load_tokenizer({folder!r}), TokenizerWrapper)

class Model(Llama):
    pass
"""


# As far as mlx-lm's own imports go; the real one takes two seconds, and the test with a model folder's code has it.
EMPTY_TRANSFORMERS = """
import sys, types

class Empty(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"register": staticmethod(lambda *a, **k: None)})

for name in ("transformers", "transformers.tokenization_utils_base"):
    sys.modules[name] = Empty(name)
"""


def run(code_or_module: list[str]) -> str:
    done = subprocess.run([sys.executable, *code_or_module], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_remote_code(folder: Path) -> Path:
    write_tiny_model(folder, "llama")
    (folder / "mine.py").write_text(REMOTE_CODE.format(folder=str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "mine.py"}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("lean")
    return [
        write_tiny_model(base / "plain", "qwen3"),
        write_tiny_model(base / "quantized", "llama", quantize={"bits": 4, "group_size": 32}),
        with_remote_code(base / "remote"),
    ]


@pytest.fixture(scope="module")
def lean(folders: list[Path]) -> dict[str, Any]:
    return dict(json.loads(run(["-m", "tests.rank.lean_driver", *map(str, folders)]).splitlines()[-1]))


def test_every_architecture_is_built_from_the_same_classes(lean: dict[str, Any]) -> None:
    assert lean["classes"] == lean_driver.classes()


def test_building_every_architecture_needs_nothing_that_is_deferred(lean: dict[str, Any]) -> None:
    assert lean["deferred"] == ["mlx_lm.generate", "mlx_lm.tokenizer_utils", "transformers"]


def test_models_are_loaded_alike_to_the_last_bit(lean: dict[str, Any], folders: list[Path]) -> None:
    assert lean["models"] == json.loads(json.dumps([lean_driver.loaded(folder) for folder in folders]))


def test_code_of_a_model_folder_gets_the_real_generation_and_tokenizers(lean: dict[str, Any]) -> None:
    assert lean["models"][-1][0] == "Model"
    assert lean["deferred at the end"] == []


@pytest.mark.parametrize(
    "use",
    [
        "from mlx_lm import stream_generate as found; assert found.__module__ == 'mlx_lm.generate'",
        "from mlx_lm import *; assert load.__module__ == 'mlx_lm.utils'",
        "import mlx_lm.generate; assert callable(mlx_lm.generate)",
        "from mlx_lm.convert import mixed_quant_predicate_builder; import mlx_lm; assert callable(mlx_lm.convert)",
        "import mlx_lm.server, mlx_lm; assert callable(mlx_lm.generate)",
        "import mlx_lm; assert mlx_lm.__version__; assert not hasattr(mlx_lm, 'no_such_name')",
        "from mlx_lm.tokenizer_utils import TokenizerWrapper as a; from mlx_lm.utils import TokenizerWrapper as b; "
        "assert a is b and a.__module__ == 'mlx_lm.tokenizer_utils'",
        "from mlx_lm.utils import *; assert TokenizerWrapper.__module__ == 'mlx_lm.tokenizer_utils'",
        "import mlx_lm.utils as u; assert u.hf_repo_to_path.__globals__['snapshot_download'].__name__",
    ],
)
def test_whatever_is_touched_first_is_the_real_thing(use: str) -> None:
    run(["-c", f"{EMPTY_TRANSFORMERS}\nfrom chorus.rank.upstream import lean\nlean.install()\n{use}"])


def test_the_modules_that_the_package_replaces_by_functions_are_known() -> None:
    folder = Path(mlx_lm.__path__[0])
    assert {name for name in mlx_lm.__all__ if (folder / f"{name}.py").is_file()} == SHADOWED


def test_the_lean_start_refuses_to_come_late() -> None:
    code = f"{EMPTY_TRANSFORMERS}\nimport mlx_lm.models\nfrom chorus.rank.upstream import lean\nlean.install()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "is imported already" in done.stderr
