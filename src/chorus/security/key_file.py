"""Where API keys are kept: a small JSON file that only its owner can read, with hashes and no keys."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from chorus.errors import ChorusError
from chorus.platform.storage.files import Version, version, write_whole
from chorus.platform.storage.paths import private_folder
from chorus.security.key_rules import USE, ApiKey, Scopes, key_hash, new_key

log = logging.getLogger(__name__)


class KeyFileError(ChorusError):
    pass


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: tuple[ApiKey, ...] = ()

    @field_validator("keys")
    @classmethod
    def _names_are_unique(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        names = [key.id for key in keys]
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"there are two keys with the id {doubled!r}")
        return keys


class LiveKeys:
    """The keys in a file as it is now, looked at whenever they are asked for."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: Version | None = None
        self._keys: tuple[ApiKey, ...] = ()

    def current(self) -> tuple[ApiKey, ...]:
        """A file that is wrong is told once, and the keys before it stay; where there were none, nobody is known."""
        try:
            seen = version(self._file)
        except OSError:
            seen = (0, 0, 0)
        if seen != self._seen:
            self._seen = seen
            try:
                self._keys = load_keys(self._file)
            except KeyFileError as error:
                log.warning("%s; the keys before it stay in force", error)
        return self._keys


def default_key_file() -> Path:
    if chosen := os.environ.get("CHORUS_KEYS_FILE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "chorus" / "keys.json"


def load_keys(file: Path) -> tuple[ApiKey, ...]:
    """No file means no keys."""
    try:
        return _KeyFile.model_validate_json(file.read_bytes()).keys
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {file}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise KeyFileError(f"key file {file}: {where}: {first['msg']}; mend it or remove it") from None


def add_key(
    file: Path,
    name: str,
    requests_per_minute: int | None = None,
    max_concurrent: int | None = None,
    *,
    scopes: Scopes = USE,
    models: Sequence[str] = (),
) -> str:
    """Returns the key itself, which is shown once and kept nowhere."""
    keys = load_keys(file)
    if any(key.id == name for key in keys):
        raise KeyFileError(f"there is a key named {name!r} already: remove it first, or choose another name")
    secret = new_key()
    try:
        entry = ApiKey(
            id=name,
            sha256=key_hash(secret),
            requests_per_minute=requests_per_minute,
            max_concurrent=max_concurrent,
            scopes=scopes,
            models=tuple(models) or None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("id",):
            raise KeyFileError(
                f"{name!r} cannot name a key: use letters, digits, dot, dash and underscore, up to 64"
            ) from None
        raise KeyFileError(f"{first['loc'][0]}: {first['msg']}") from None
    _write(file, [*keys, entry])
    return secret


def remove_key(file: Path, name: str) -> None:
    keys = load_keys(file)
    kept = [key for key in keys if key.id != name]
    if len(kept) == len(keys):
        raise KeyFileError(f"there is no key named {name!r} in {file}: `chorus keys list` names those that there are")
    _write(file, kept)


def _write(file: Path, keys: Sequence[ApiKey]) -> None:
    content = _KeyFile(keys=tuple(keys)).model_dump_json(indent=2, exclude_none=True) + "\n"
    try:
        write_whole(private_folder(file.parent) / file.name, content.encode(), 0o600, lasting=True)
    except OSError as error:
        raise KeyFileError(f"cannot write the key file {file}: {error.strerror}") from None
