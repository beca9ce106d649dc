"""A presharded model says itself how it is divided: nothing needs to be repeated, and nothing may contradict it."""

from __future__ import annotations

from chorus.cluster.config import Settings
from chorus.models import LocalModel, ModelError
from chorus.models.preshard import Division, check_division, is_preshard, read_preshard


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
    chosen = {
        "ranks": ranks,
        "parallel": division.parallel,
        "split": division.parts if division.parallel == "pipeline" else None,
        "weights": division.parts if division.parallel == "tensor" else None,
    }
    return settings.model_copy(update={"engine": engine.model_copy(update=chosen)})
