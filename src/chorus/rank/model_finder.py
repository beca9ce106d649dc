"""Where a rank looks for the model it is told to load: a leader elsewhere cannot know the folders of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorus.messages.load import LoadRequest
from chorus.models import ModelError
from chorus.models.resolve import named_model

ModelFinder = Callable[[LoadRequest], Path]


def leaders_path(request: LoadRequest) -> Path:
    """The folder that the leader names, for ranks of one machine that the same user started."""
    return Path(request.model_path)


def model_finder(path: Path | None, own_store: bool, trust_remote_code: bool = False) -> ModelFinder:
    """A folder that the agent chose; or the store, by name, for leaders that nobody has authenticated. Those may ask
    for a model's own code only where the owner of this machine has allowed it.
    """
    if path:
        return lambda request: path
    return (lambda request: _in_own_store(request, trust_remote_code)) if own_store else leaders_path


def _in_own_store(request: LoadRequest, trust_remote_code: bool) -> Path:
    if request.trust_remote_code and not trust_remote_code:
        raise ValueError(f"{request.model} may not run its own code here: start this rank with --trust-remote-code")
    try:
        return named_model(request.model)
    except ModelError as error:
        raise ValueError(str(error)) from error
