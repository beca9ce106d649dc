"""Where a rank looks for the model it is told to load: a leader elsewhere cannot know the folders of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorus.cluster.agent_models import NoModel, named_model
from chorus.proto import rank_pb2 as wire

ModelFinder = Callable[[wire.LoadRequest], Path]


def leaders_path(request: wire.LoadRequest) -> Path:
    """For ranks of one machine, started by the same user as their leader."""
    return Path(request.model_path)


def model_finder(path: Path | None, own_store: bool) -> ModelFinder:
    """A folder that the agent chose; or the store, by name, for leaders that nobody has authenticated."""
    if path:
        return lambda request: path
    return _in_own_store if own_store else leaders_path


def _in_own_store(request: wire.LoadRequest) -> Path:
    try:
        return named_model(request.model)
    except NoModel as error:
        raise ValueError(str(error)) from error
