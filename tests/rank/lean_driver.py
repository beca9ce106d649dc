"""What a rank that started lean sees of mlx-lm, printed as JSON: `python -m tests.rank.lean_driver FOLDER…`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from chorus import platform


def main() -> None:
    from chorus.rank.upstream import lean

    platform.prepare(1)
    lean.install()
    seen = {
        "classes": classes(),
        "deferred": sorted({"transformers", "mlx_lm.generate", "mlx_lm.tokenizer_utils"} - _run_modules()),
        "models": [loaded(Path(folder)) for folder in sys.argv[1:]],
        "deferred at the end": sorted({"transformers", "mlx_lm.generate"} - _run_modules()),
    }
    print(json.dumps(seen))


def _run_modules() -> set[str]:
    from chorus.rank.upstream.lean import Deferred

    return {name for name, module in sys.modules.items() if type(module) is not Deferred}


def classes() -> dict[str, list[str]]:
    """For every architecture, which classes build it and with which parameters."""
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    from chorus.rank.upstream import decoders
    from tests.support.architectures import ARCHITECTURES

    def described(model: nn.Module) -> list[str]:
        modules = [
            f"{name} {type(module).__module__}.{type(module).__qualname__}" for name, module in model.named_modules()
        ]
        parameters = [f"{name} {value.shape} {value.dtype}" for name, value in tree_flatten(model.parameters())]
        return [hashlib.sha256(json.dumps(sorted(lines)).encode()).hexdigest() for lines in (modules, parameters)]

    return {name: described(decoders.build(config)) for name, config in ARCHITECTURES.items()}


def loaded(folder: Path) -> list[Any]:
    """A model as a rank loads it: its class, its configuration, and every number in it."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from chorus.rank.upstream.weights import load_lazily

    lazy = load_lazily(folder, trust_remote_code=True)
    digest = hashlib.sha256()
    for name, value in sorted(tree_flatten(lazy.model.parameters())):
        digest.update(name.encode())
        digest.update(memoryview(mx.contiguous(value).reshape(-1).view(mx.uint8)))
    return [type(lazy.model).__qualname__, lazy.config, sorted(lazy.loaded), digest.hexdigest()]


if __name__ == "__main__":
    main()
