"""What the hub said about the weights of a commit, kept on this machine.

A commit never changes, so nobody needs to ask twice; and a cluster of which each machine keeps only its own files can
start again when the hub is out of reach.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chorus.models.errors import ModelError
from chorus.models.hub.cache import fetch_files, file_sizes, is_offline
from chorus.models.hub.files import choose_weights
from chorus.models.tensors import TensorInfo, tensor_info, weight_map
from chorus.models.values import ProgressCallback, ignore_progress
from chorus.platform.storage.files import write_if_possible
from chorus.platform.storage.paths import cache_dir

log = logging.getLogger(__name__)

HEADER_SECONDS = 30.0


@dataclass(frozen=True)
class HubVersion:
    """One commit of a hub model: what every machine of a cluster must agree on."""

    id: str
    commit: str

    @property
    def name(self) -> str:
        return f"{self.id}@{self.commit}"

    def fetch(self, names: Iterable[str], progress: ProgressCallback = ignore_progress) -> None:
        fetch_files(self.id, self.commit, names, progress=progress)


@dataclass(frozen=True)
class WeightsRecord:
    """What a hub model's weight files hold, known without having them."""

    sizes: dict[str, int]
    """Bytes of every weight file."""
    tensors: dict[str, TensorInfo]
    """What the headers say; a tensor's bytes are counted from where its file's header ends."""


def weights_record(version: HubVersion, folder: Path) -> WeightsRecord:
    """The record kept from before, or one asked of the hub and kept. The folder has the model's description."""
    if kept := kept_record(version):
        return kept
    if is_offline(None):
        raise ModelError(
            f"{version.name} is here only in part, and what the whole is like was never asked; serve it once while "
            "online, or pull it whole."
        )
    asked = _ask(version, folder)
    _keep(version, asked)
    return asked


def kept_record(version: HubVersion) -> WeightsRecord | None:
    try:
        found = json.loads(_file(version).read_text(encoding="utf-8"))
        sizes = {str(name): int(size) for name, size in found["sizes"].items()}
        tensors = {
            str(name): TensorInfo(Path(file), str(dtype), tuple(map(int, shape)), int(start), int(end))
            for name, (file, dtype, shape, start, end) in found["tensors"].items()
        }
    except FileNotFoundError:
        return None
    except (OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        log.warning("%s is of no use (%s): the hub is asked again", _file(version), error)
        return None
    return WeightsRecord(sizes, tensors)


def _keep(version: HubVersion, record: WeightsRecord) -> None:
    tensors = {name: [str(i.file), i.dtype, i.shape, i.start, i.end] for name, i in record.tensors.items()}
    file = _file(version)
    content = json.dumps({"sizes": record.sizes, "tensors": tensors}).encode()
    write_if_possible(file, content, f"{version.id} will not start without the hub")


def _file(version: HubVersion) -> Path:
    return cache_dir() / "hub" / f"{version.id.replace('/', '--')}@{version.commit}.json"


def _ask(version: HubVersion, folder: Path) -> WeightsRecord:
    told = file_sizes(version.id, version.commit)
    chosen = choose_weights(version.id, told, weight_map(folder))
    sizes = {name: size for name in chosen if (size := told[name]) is not None}
    if unknown := [name for name in chosen if name not in sizes]:
        raise ModelError(f"The hub does not say how large {unknown[0]} of {version.name} is; pull the model whole.")
    return WeightsRecord(sizes, _headers(version))


def _headers(version: HubVersion) -> dict[str, TensorInfo]:
    # Few processes ask the hub: they alone wait for its library.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, NotASafetensorsRepoError, SafetensorsParsingError
    from huggingface_hub.utils import disable_progress_bars

    from chorus.models.hub.client import NOT_AN_ANSWER

    disable_progress_bars()  # a bar of the library's own would run through ours
    try:
        found = HfApi().get_safetensors_metadata(version.id, revision=version.commit, timeout=HEADER_SECONDS)
        return {
            name: tensor_info(Path(file), vars(info), 0)
            for file, metadata in found.files_metadata.items()
            for name, info in metadata.tensors.items()
        }
    except NotASafetensorsRepoError as error:
        raise ModelError(f"{version.id} has no safetensors weights; choose another repository.") from error
    except (HTTPError, SafetensorsParsingError, OSError, *NOT_AN_ANSWER) as error:
        raise ModelError(f"Cannot read the weight headers of {version.name}: {error}; try again.") from error
