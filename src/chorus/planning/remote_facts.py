"""Facts about a model that is not on this machine yet: only the headers of its files are fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorus.models import ModelError, Progress, resolve
from chorus.models.hub.parts import remote_tensors
from chorus.models.resolve import split_hub_id
from chorus.models.tensors import read_json
from chorus.planning.facts import ModelFacts, facts_of, read_facts


def find_facts(name: str, progress: Callable[[Progress], None] | None = None) -> ModelFacts:
    """Of the model that `name` means. A hub model that is not in the cache is asked about, not downloaded."""
    if Path(name).expanduser().is_dir() or split_hub_id(name) is None:
        model = resolve(name, progress=progress)
        return read_facts(model.path, model.id)
    try:
        model = resolve(name, progress=progress, offline=True)
    except ModelError:
        model = resolve(name, progress=progress, weights=False)
        return facts_of(read_json(model.path / "config.json"), remote_tensors(model), model.id)
    return read_facts(model.path, model.id)
