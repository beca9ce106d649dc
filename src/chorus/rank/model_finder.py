"""Where a rank looks for the model it is told to load: a leader elsewhere cannot know the folders of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chorus.messages.load import LoadRequest
from chorus.models import ModelError
from chorus.models.headers import ModelHeaders, difference, read_headers
from chorus.models.resolve import is_name, named_model

ModelFinder = Callable[[LoadRequest], Path]


def leaders_path(request: LoadRequest) -> Path:
    """The folder that the leader names, for ranks of one machine that the same user started."""
    return Path(request.model_path)


def model_finder(
    path: Path | None, own_store: bool, trust_remote_code: bool = False, own_models: Sequence[Path] = ()
) -> ModelFinder:
    """A folder that the agent chose; or, for leaders that nobody has authenticated, one that the owner of this machine
    named when the rank was started, or the store, by name. Those leaders may ask for a model's own code only where the
    owner has allowed it.
    """
    if path:
        return lambda request: path
    return (lambda request: _own_model(request, trust_remote_code, own_models)) if own_store else leaders_path


def _own_model(request: LoadRequest, trust_remote_code: bool, own_models: Sequence[Path]) -> Path:
    if request.trust_remote_code and not trust_remote_code:
        raise ValueError(f"{request.model} may not run its own code here: start this rank with --trust-remote-code")
    try:
        wanted = ModelHeaders.unpacked(request.headers) if request.headers else None
        return _same_model(request.model, wanted, own_models)
    except (ModelError, OSError) as error:
        raise ValueError(str(error)) from error


def _same_model(name: str, wanted: ModelHeaders | None, own_models: Sequence[Path]) -> Path:
    """Raises ModelError where this machine has no such model, or another one; a leader of before says nothing of its
    own, and gets what the store has by that name.
    """
    others = []
    for folder in own_models if wanted else ():
        if (other := _difference(folder, wanted)) is None:
            return folder
        others.append(f"{folder.name} here is another model than rank 0's {name}: {other}")
    if others and not is_name(name):
        raise ModelError("; ".join(others))
    try:
        stored = named_model(name)
    except ModelError as error:
        raise ModelError("; ".join([*others, str(error)])) from error
    if other := _difference(stored, wanted):
        raise ModelError(f"{name} in this machine's store is another model than rank 0's: {other}")
    return stored


def _difference(folder: Path, wanted: ModelHeaders | None) -> str | None:
    return difference(read_headers(folder), wanted) if wanted else None
