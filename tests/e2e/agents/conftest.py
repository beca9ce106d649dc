from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agents.network import OwnNetwork
from tests.e2e.agents.programs import CONTEXT, installed_clients
from tests.support.tiny_model import write_tiny_model

TEMPLATE = Path(__file__).with_name("thinking.jinja")


@pytest.fixture(scope="session")
def clients() -> Path:
    return installed_clients()


@pytest.fixture(scope="session")
def network() -> Iterator[OwnNetwork]:
    with OwnNetwork() as network:
        yield network


@pytest.fixture(scope="session")
def agent_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random and quick to read with; it has the words of a real model, and a template with thoughts and tools."""
    folder = write_tiny_model(
        tmp_path_factory.mktemp("agent") / "tiny",
        "llama",
        tokenizer=False,
        vocab_size=json.loads((smollm2 / "config.json").read_text())["vocab_size"],
        max_position_embeddings=CONTEXT,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    shutil.copy(smollm2 / "tokenizer.json", folder)
    settings = json.loads((smollm2 / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": CONTEXT}))
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder
