"""Whether a model can be served, told from the names of files before anything is started or loaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from chorus.models.architectures import ALIASES, named, why_unknown
from chorus.models.errors import ModelError
from chorus.models.tensors import read_json
from chorus.models.values import LocalModel

_VOCABULARIES = ("tokenizer.json", "*.model", "*.tiktoken", "*vocab*", "tekken.json", "*.py")


def check_servable(model: LocalModel) -> LocalModel:
    """The model itself, which has a tokenizer and an architecture that mlx-lm knows; otherwise raises ModelError."""
    if not any(next(model.path.glob(pattern), None) for pattern in _VOCABULARIES):
        raise ModelError(
            f"{model.path} has no tokenizer: put the tokenizer.json and tokenizer_config.json of the model that it was "
            "made from beside its weights."
        )
    config = read_json(model.path / "config.json")
    own_code = config.get("model_file")
    if not own_code and not _is_known(model_type := str(config.get("model_type"))):
        raise ModelError(f"{model.path}: {why_unknown(model_type, config.get('architectures'))}.")
    return model


def _is_known(model_type: str) -> bool:
    """Looks for the module's file, since importing mlx-lm takes two seconds; a package may have registered others."""
    package = find_spec("mlx_lm")
    folders = (package.submodule_search_locations if package else None) or ()
    modules = {file.stem for folder in folders for file in Path(folder, "models").glob("*.py")}
    return not modules or not {model_type, ALIASES.get(model_type)}.isdisjoint({*modules, *named()})
