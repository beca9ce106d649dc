from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines that run tests are busy: how long an example takes says nothing. Examples are the same in every run.
settings.register_profile("chorus", deadline=None, derandomize=True)
settings.load_profile("chorus")

# Each is minutes for one worker: begun last, they would leave the others idle at the end.
SLOWEST_FILES = (
    "e2e/test_ranks.py",
    "tensor/test_parity.py",
    "agents/test_worker.py",
    "agents/test_agents.py",
    "parity/test_pipeline_parity.py",
    "e2e/test_serving.py",
    "e2e/test_supervision.py",
    "cluster/test_preshard_serving.py",
    "models/test_node_parts.py",
    "e2e/test_schemas.py",
    "localai/test_smollm2.py",
    "transport/test_packed_serving.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
