"""What each kind of process loads before it does anything: what it never uses must not cost it time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chorus.config.engine import EngineSpec
from chorus.platform.process.exits import EXIT_CANNOT_START
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

TEXT = {"transformers", "tokenizers", "jinja2"}
HUB = {"httpx", "gguf", "huggingface_hub.hf_api", "huggingface_hub._snapshot_download"}
WEB = {"fastapi", "starlette", "uvicorn"}
MLX = {"mlx", "mlx_lm"}
NODES = {"zeroconf", "asyncssh"}
GRAMMARS = {"llguidance"}
SCRAPED = {"prometheus_client"}

WATCHING = {*TEXT, *WEB, *MLX, *NODES, *GRAMMARS, "numpy", "grpc", "cryptography"}

UNUSED_BY = {
    "chorus.cli": {*TEXT, *HUB, *WEB, *MLX, *NODES, *GRAMMARS, "numpy", "grpc", "pydantic", "yaml", "cryptography"},
    "chorus.cli.chat.command": {*WATCHING, "prompt_toolkit"},
    "chorus.cli.top.command": {*WATCHING, "prompt_toolkit"},
    "chorus.cli.serve": {*TEXT, *HUB, *WEB, *MLX, *NODES, *GRAMMARS, "cryptography", "chorus.text.parsers"},
    "chorus.cli.join": {*TEXT, *HUB, *WEB, *MLX, *GRAMMARS, "asyncssh"},
    "chorus.cli.localai": {*HUB, *WEB, *MLX, *NODES, *GRAMMARS, "transformers"},
    "chorus.cli.worker": {*TEXT, *HUB, *WEB, *MLX, *GRAMMARS, "asyncssh"},
    "chorus.api.__main__": {*HUB, *MLX, *NODES, *GRAMMARS, "transformers", "numpy"},
    "chorus.text.grammar.__main__": {*TEXT, *HUB, *WEB, *MLX, *NODES, "numpy", "grpc", "pydantic", "yaml"},
}
UNUSED_BY_RANKS = {*TEXT, *HUB, *WEB, *NODES, *GRAMMARS, *SCRAPED, "cryptography", "mlx_lm.generate", "mlx_lm.convert"}


def loaded_after(code: str) -> set[str]:
    """Everything that a fresh interpreter has imported once it has run this."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CHORUS_")}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", sorted(UNUSED_BY))
def test_importing_an_entry_point_loads_nothing_that_it_does_not_use(module: str) -> None:
    assert loaded_after(f"import {module}") & UNUSED_BY[module] == set()


def test_a_front_end_that_has_read_its_tokenizer_has_loaded_no_transformers(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    code = f"""
from pathlib import Path
import chorus.api.__main__, chorus.localai.loading
from chorus.serving.prompt.tokenizer import ServedTokenizer
tokenizer = ServedTokenizer.load(Path({str(tmp_path)!r}))
tokenizer.chat_prompt([dict(role="user", content="Hello")])
"""
    assert loaded_after(code) & {*HUB, *MLX, *GRAMMARS, "transformers"} == set()


def test_a_following_rank_that_is_ready_to_listen_has_loaded_neither_tokenizers_nor_the_hub() -> None:
    nowhere = "256.256.256.256:1"
    code = f"""
import sys
from chorus.rank.__main__ import main
sys.argv = ["shard", "--rank", "1", "--listen", {nowhere!r}]
assert main() == {EXIT_CANNOT_START}
assert "chorus.rank.worker" in sys.modules
"""
    assert loaded_after(code) & (UNUSED_BY_RANKS | {"pydantic"}) == set()


def test_a_leader_that_is_ready_to_load_has_loaded_neither_tokenizers_nor_the_hub(tmp_path: Path) -> None:
    spec = EngineSpec(address=f"unix:{short(tmp_path)}/engine.sock", model_path=tmp_path / "nowhere", threads=1)
    file = tmp_path / "engine.json"
    file.write_text(spec.model_dump_json())
    code = f"""
import sys
from chorus.engine.__main__ import main
sys.argv = ["engine", {str(file)!r}]
assert main() == {EXIT_CANNOT_START}
assert "chorus.engine.lifecycle.process" in sys.modules
"""
    assert loaded_after(code) & UNUSED_BY_RANKS == set()
