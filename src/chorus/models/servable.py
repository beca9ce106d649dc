"""Whether a model can be served, told from the names of files before anything is started or loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chorus.models.architectures import ALIASES, named, why_unknown
from chorus.models.errors import ModelError
from chorus.models.tensors import read_json
from chorus.models.values import LocalModel

_VOCABULARIES = ("tokenizer.json", "*.model", "*.tiktoken", "*vocab*", "tekken.json", "*.py")


_ENCODERS = frozenset(
    {"electra", "ernie", "esm", "fnet", "funnel", "longformer", "big_bird", "mpnet", "new", "xlm", "xlnet"}
)
"""Model types of encoders, besides all that have bert in their names."""
_BOTH_WAYS = re.compile(r"[Bb]idirec(tional)?|NVEmbed|nvembed|BiModel|EncoderModel")
_INSTEAD = "Chorus serves decoders: for embeddings, take one that is a decoder, e.g. Qwen/Qwen3-Embedding-0.6B"


def check_servable(model: LocalModel) -> LocalModel:
    """The model itself, which has a tokenizer and is a decoder that mlx-lm knows; otherwise raises ModelError."""
    if not any(next(model.path.glob(pattern), None) for pattern in _VOCABULARIES):
        raise ModelError(
            f"{model.path} has no tokenizer: put the tokenizer.json and tokenizer_config.json of the model that it was "
            "made from beside its weights."
        )
    config = read_json(model.path / "config.json")
    if reason := why_no_decoder(config):
        raise ModelError(f"{model.path}: {reason}. {_INSTEAD}.")
    own_code = config.get("model_file")
    if not own_code and not _is_known(model_type := str(config.get("model_type"))):
        raise ModelError(f"{model.path}: {why_unknown(model_type, config.get('architectures'))}.")
    return model


def why_no_decoder(config: Mapping[str, Any]) -> str | None:
    """Why a model's text is not read from its first token to its last, each seeing those before it; None where it is.

    A decoder that was trained to look in both directions loads like any other, and its embeddings would be wrong.
    """
    model_type, classes = str(config.get("model_type")), config.get("architectures")
    names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    called = f"{names[0]:.80} (model type {model_type!r:.80})" if names else f"model type {model_type!r:.80}"
    if config.get("is_encoder_decoder"):
        return f"{called} has an encoder besides its decoder"
    if "bert" in model_type.lower() or model_type in _ENCODERS or any(name.endswith("ForMaskedLM") for name in names):
        return f"{called} is an encoder"
    if any(_BOTH_WAYS.search(name) for name in (model_type, *names)):
        return f"{called} reads its text in both directions"
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        if part.get("is_causal") is False:
            return f"{called} reads its text in both directions, as is_causal in config.json says"
        # Only what is an image may be looked at in both directions: the text of such a model is not.
        if part.get("use_bidirectional_attention") not in (None, False, "vision"):
            return f"{called} reads its text in both directions, as use_bidirectional_attention in config.json says"
    return None


def _is_known(model_type: str) -> bool:
    """Looks for the module's file, since importing mlx-lm takes two seconds; a package may have registered others."""
    package = find_spec("mlx_lm")
    folders = (package.submodule_search_locations if package else None) or ()
    modules = {file.stem for folder in folders for file in Path(folder, "models").glob("*.py")}
    return not modules or not {model_type, ALIASES.get(model_type)}.isdisjoint({*modules, *named()})
