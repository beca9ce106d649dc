"""Facts about a model that is not on this machine yet: only the headers of its files are fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorus.cluster.facts import ModelFacts, facts_of, read_facts
from chorus.models import ModelError, Progress, TensorInfo, resolve
from chorus.models.hub import is_offline
from chorus.models.resolve import split_hub_id
from chorus.models.tensors import read_json

HEADER_SECONDS = 30.0


def find_facts(name: str, progress: Callable[[Progress], None] | None = None) -> ModelFacts:
    """Of the model that `name` means. A hub model that is not in the cache is asked about, not downloaded."""
    hub_id = None if Path(name).expanduser().is_dir() else split_hub_id(name)
    if hub_id is None:
        model = resolve(name, progress=progress)
        return read_facts(model.path, model.id)
    try:
        model = resolve(name, progress=progress, offline=True)
    except ModelError:
        if is_offline(None):
            raise
        return _remote_facts(*hub_id, resolve(name, progress=progress, weights=False).path)
    return read_facts(model.path, model.id)


def _remote_facts(model_id: str, revision: str | None, folder: Path) -> ModelFacts:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, NotASafetensorsRepoError, SafetensorsParsingError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # a bar of the library's own would run through ours
    try:
        found = HfApi().get_safetensors_metadata(model_id, revision=revision, timeout=HEADER_SECONDS)
    except NotASafetensorsRepoError as error:
        raise ModelError(f"{model_id} has no safetensors weights; choose another repository.") from error
    except (HTTPError, SafetensorsParsingError, OSError) as error:
        raise ModelError(f"Cannot read the weight headers of {model_id}: {error}; try again.") from error
    tensors = {
        name: TensorInfo(Path(file), info.dtype, tuple(info.shape), *info.data_offsets)
        for file, metadata in found.files_metadata.items()
        for name, info in metadata.tensors.items()
    }
    return facts_of(read_json(folder / "config.json"), tensors, model_id)
