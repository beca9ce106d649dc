"""One rank of a group: `mpirun -n 4 python -m tests.support.group_driver SPEC REPORT`. Rank 0 leads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from chorus import platform
from chorus.platform.process import lifeline
from chorus.rank.upstream import lean

lifeline.hold()
platform.prepare(1)
lean.install()

from chorus.config.engine import EngineSpec  # noqa: E402
from chorus.rank.tensor import divide  # noqa: E402
from chorus.rank.worker import Worker  # noqa: E402
from tests.support.group_requests import generate  # noqa: E402


def main() -> int:
    spec = EngineSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    divide.VOCABULARY_PAYS_FROM = 0
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    if rank:
        Worker(rank, spec.ranks[rank]).serve()
        return 0
    answer = generate(spec)
    Path(sys.argv[2]).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
