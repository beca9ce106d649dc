"""A presharded model says itself how it is divided: nothing needs to be repeated, and nothing may contradict it."""

from __future__ import annotations

from pathlib import Path

from chorus.config.settings import Settings
from chorus.models import LocalModel, ModelError, tensor_index
from chorus.models.preshard.folder import Division, check_division, is_preshard, rank_name, read_preshard
from chorus.models.tensors import read_json
from chorus.planning.facts import ModelFacts, facts_of


def with_own_division(settings: Settings, model: LocalModel) -> Settings:
    """The settings with the division that the folder was made for; ModelError where they ask for another one."""
    if not is_preshard(model.path):
        return settings
    made, engine = read_preshard(model.path), settings.engine
    if engine.split or engine.weights:
        check_division(model.path, made, Division.of(engine.split, engine.weights))
    ranks, division = len(made.division.parts), made.division
    if engine.parallel not in ("auto", division.parallel) and not (engine.parallel == "single" and ranks == 1):
        raise ModelError(
            f"{model.path} was made for {division}, not for parallel {engine.parallel}; leave that setting out, "
            "or serve the original model"
        )
    if "ranks" in engine.model_fields_set and engine.ranks != ranks:
        raise ModelError(
            f"{model.path} was made for {ranks} ranks ({division}), not for {engine.ranks}; leave that setting out, "
            "or serve the original model"
        )
    if settings.sharding.custom_proportions and settings.sharding.strategy == "custom":
        raise ModelError(
            f"{model.path} was made for {division}; leave sharding.custom_proportions out, or serve the original model"
        )
    chosen = {
        "ranks": ranks,
        "parallel": division.parallel,
        "split": division.parts if division.parallel == "pipeline" else None,
        "weights": division.parts if division.parallel == "tensor" else None,
    }
    return settings.model_copy(update={"engine": engine.model_copy(update=chosen)})


def cut_facts(folder: Path) -> ModelFacts:
    """Facts of a model cut into runs of layers, whose parts are the whole; what both ends hold counts once."""
    made = read_preshard(folder)
    parts = (folder / rank_name(rank) for rank in range(len(made.division.parts)))
    tensors = {name: info for part in parts for name, info in tensor_index(part).items()}
    return facts_of(read_json(folder / "config.json"), tensors, made.model)


def slice_facts(folder: Path, rank: int) -> ModelFacts:
    """Facts of what one rank holds of a model that was cut inside its layers."""
    part = folder / rank_name(rank)
    return facts_of(read_json(part / "config.json"), tensor_index(part), read_preshard(folder).model)
