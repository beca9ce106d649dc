"""One rank of a sitting over collectives: `mpirun -n 2 python -m tests.soak_cache.collective FOLDER`. Rank 0 leads."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from chorus.platform.process import lifeline
from tests.soak_cache import prepared

lifeline.hold()
prepared.prepare()

from chorus.rank.worker import Worker  # noqa: E402
from tests.soak_cache.cases import Case, Sitting  # noqa: E402
from tests.soak_cache.running import hold, rank_addresses  # noqa: E402


def main() -> int:
    folder, rank = Path(sys.argv[1]), int(os.environ["OMPI_COMM_WORLD_RANK"])
    order = json.loads((folder / "sitting.json").read_text())
    sitting = Sitting(**{**order, "case": Case(**order["case"])})
    addresses = rank_addresses(folder, sitting.case.ranks)
    if rank:
        Worker(rank, addresses[rank]).serve()
        return 0
    (folder / "findings.json").write_text(json.dumps(asdict(hold(sitting, folder, addresses))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
