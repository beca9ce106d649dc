"""The hub through its library, whose errors become one clear line. `cache` imports this when it is needed."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, scan_cache_dir, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm as hub_tqdm

from chorus.models.errors import ModelError
from chorus.models.hub.files import DESCRIPTIONS, choose_weights, description_files
from chorus.models.tensors import WEIGHTS_GLOB, weight_files, weight_map
from chorus.models.values import CachedModel, Progress, ProgressCallback

_log = logging.getLogger(__name__)

# What the library trips over where an answer is not what a hub would say.
NOT_AN_ANSWER = (AttributeError, LookupError, RecursionError, TypeError, ValueError)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SUBFOLDERS = "*/*"
_ANSWER_S = 15.0
_DEFAULT_REVISION = "main"


def fetch_model(model_id: str, revision: str | None, weights: bool, progress: ProgressCallback) -> Path:
    with _clear_errors(model_id, revision):
        try:
            sizes = _list_files(model_id, revision)
        except RevisionNotFoundError:
            raise
        except HTTPError as error:
            return _cached_after_failure(model_id, revision, weights, error)
        names = description_files(sizes)
        if "config.json" not in names:
            raise ModelError(f"{model_id} has no config.json and is no model that can be served; choose another one.")
        path = _download(model_id, revision, {name: sizes[name] for name in names}, progress)
        if not weights:
            return path
        # The folder is named by its commit; asking for that one keeps the two downloads of one version.
        chosen = choose_weights(model_id, sizes, weight_map(path))
        return _download(model_id, path.name, {name: sizes.get(name) for name in chosen}, progress)


def fetch_files(model_id: str, revision: str | None, names: Sequence[str], progress: ProgressCallback) -> Path:
    with _clear_errors(model_id, revision, names):
        sizes = _list_files(model_id, revision)
        if missing := [name for name in names if name not in sizes]:
            raise ModelError(f"{model_id} has no file {missing[0]}; check the model's index.")
        return _download(model_id, revision, {name: sizes[name] for name in names}, progress)


def cached_files(model_id: str, revision: str | None, names: Sequence[str]) -> Path:
    found = [_cached_file(model_id, revision, name) for name in names]
    if missing := [name for name, file in zip(names, found, strict=True) if file is None]:
        raise ModelError(f"{model_id} lacks {missing[0]} in the cache, and we are offline; pull it while online.")
    return next(file.parent for file in found if file is not None)


def file_sizes(model_id: str, revision: str | None) -> dict[str, int | None]:
    with _clear_errors(model_id, revision):
        return _list_files(model_id, revision)


def cached_models() -> list[CachedModel]:
    found = []
    for repo in _scan():
        for revision in sorted(repo.revisions, key=lambda r: r.last_modified, reverse=True):
            names = {file.file_name for file in revision.files}
            if "config.json" in names and any(fnmatchcase(name, WEIGHTS_GLOB) for name in names):
                hashes = tuple(sorted(other.commit_hash for other in repo.revisions))
                found.append(CachedModel(repo.repo_id, hashes, revision.snapshot_path, repo.size_on_disk))
                break
    return sorted(found, key=lambda model: model.id)


def remove_cached(model_id: str, revision: str | None = None) -> int:
    for repo in _scan():
        if repo.repo_id != model_id:
            continue
        hashes = [
            found.commit_hash
            for found in repo.revisions
            if revision is None or revision in found.refs or revision == found.commit_hash
        ]
        if hashes:
            strategy = scan_cache_dir(constants.HF_HUB_CACHE).delete_revisions(*hashes)
            strategy.execute()
            return int(strategy.expected_freed_size)
    wanted = model_id if revision is None else f"{model_id}@{revision}"
    raise ModelError(f"{wanted} is not in the Hugging Face cache; see: chorus models list")


def cached_model(model_id: str, revision: str | None, weights: bool) -> Path:
    with _clear_errors(model_id, revision):
        folder = snapshot_download(
            model_id,
            revision=revision,
            allow_patterns=list(DESCRIPTIONS),
            ignore_patterns=[_SUBFOLDERS],
            local_files_only=True,
        )
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ModelError(f"{model_id} is only in part in the Hugging Face cache; pull it while online.")
    if weights:
        weight_files(path)
    return path


def _scan() -> list[Any]:
    try:
        return [repo for repo in scan_cache_dir(constants.HF_HUB_CACHE).repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []


def _list_files(model_id: str, revision: str | None) -> dict[str, int | None]:
    info = HfApi().model_info(model_id, revision=revision, files_metadata=True, timeout=_ANSWER_S)
    files = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    # The commit becomes the name of a folder.
    if not _COMMIT.fullmatch(info.sha or "") or not all(_is_file(name, size) for name, size in files.items()):
        raise ValueError("the commit, a file or its size")
    return files


def _is_file(name: object, size: object) -> bool:
    return isinstance(name, str) and name.isprintable() and (size is None or (type(size) is int and size >= 0))


def _download(model_id: str, revision: str | None, sizes: dict[str, int | None], progress: ProgressCallback) -> Path:
    cached = sum(size or 0 for name, size in sizes.items() if _cached_file(model_id, revision, name))
    total = sum(size or 0 for size in sizes.values()) or None
    folder = snapshot_download(
        model_id,
        revision=revision,
        allow_patterns=[glob.escape(name) for name in sizes],
        tqdm_class=_reporting_bar(f"downloading {model_id}", cached, total, progress),
    )
    return Path(folder)


def _cached_file(model_id: str, revision: str | None, name: str) -> Path | None:
    found = try_to_load_from_cache(model_id, name, revision=revision or _DEFAULT_REVISION)
    return Path(found) if isinstance(found, str) else None


def _reporting_bar(label: str, start: int, total: int | None, progress: ProgressCallback) -> type[hub_tqdm]:
    """A bar class that draws nothing and tells us the bytes.

    The library keeps one bar for bytes received and one for bytes written, and a third for files; the one furthest
    ahead among the first two is the truth.
    """

    furthest = 0

    class ReportingBar(hub_tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            self.received = int(kwargs.get("initial") or 0)
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts_bytes:
                self.received += int(n or 0)
                nonlocal furthest
                furthest = max(furthest, self.received)
                done = start + furthest
                progress(Progress(label, done if total is None else min(done, total), total))
            return None

    return ReportingBar


def _cached_after_failure(model_id: str, revision: str | None, weights: bool, error: Exception) -> Path:
    """A copy from before is better than none; but where there is none, the first error is the one to tell."""
    try:
        path = cached_model(model_id, revision, weights)
    except ModelError:
        raise error from None
    _log.warning("%s does not give %s (%s); using the copy in the cache", constants.ENDPOINT, model_id, _reason(error))
    return path


@contextmanager
def _clear_errors(model_id: str, revision: str | None, files: Sequence[str] = ()) -> Iterator[None]:
    """Errors of the library as one line that names the model, and where only some files were wanted those that have not
    come.
    """
    wanted = model_id if revision is None else f"{model_id}@{revision}"
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"{wanted} asks for its terms to be accepted: do so at {constants.ENDPOINT}/{model_id}, then set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{model_id} has no revision {revision}; check its branches and tags.") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"There is no model {model_id} at {constants.ENDPOINT}; check the name, or set HF_TOKEN if it is private."
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{wanted} is not, or only in part, in the Hugging Face cache, and we are offline; pull it while online."
        ) from error
    except HFValidationError as error:
        raise ModelError(f"{wanted} is no model id; write ORGANISATION/NAME or ORGANISATION/NAME@REVISION.") from error
    except HTTPError as error:
        lacking = [name for name in files if _cached_file(model_id, revision, name) is None]
        part = f"{lacking[0]}{f' and {len(lacking) - 1} more' if lacking[1:] else ''} of " if lacking else ""
        raise ModelError(
            f"Cannot get {part}{wanted} from {constants.ENDPOINT} ({_reason(error)}); check the network, HF_ENDPOINT "
            "and proxy settings, then try again: files that are complete are kept."
        ) from error
    except OSError as error:
        raise ModelError(
            f"Cannot store {wanted} in {constants.HF_HUB_CACHE} ({_reason(error)}); "
            "try again: files that are complete are kept."
        ) from error
    except NOT_AN_ANSWER as error:
        raise ModelError(
            f"What {constants.ENDPOINT} says about {wanted} makes no sense ({_reason(error)}); check HF_ENDPOINT."
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"status {error.response.status_code}"
    first = next(iter(str(error).splitlines()), "").strip().rstrip(".")
    return first or type(error).__name__
