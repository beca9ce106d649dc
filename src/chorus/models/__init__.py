"""Model files: found, pulled, imported, checked, cut into parts."""

from __future__ import annotations

from chorus.models.errors import ModelError
from chorus.models.hub.cache import fetch_files
from chorus.models.resolve import resolve
from chorus.models.tensors import TensorInfo, files_holding, tensor_index, weight_map
from chorus.models.values import LocalModel, Progress

__all__ = [
    "LocalModel",
    "ModelError",
    "Progress",
    "TensorInfo",
    "fetch_files",
    "files_holding",
    "resolve",
    "tensor_index",
    "weight_map",
]
