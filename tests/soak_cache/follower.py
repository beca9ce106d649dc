"""A follower as `python -m chorus.rank` runs one. Metered, it writes what it holds to `rank<N>.bytes` by its socket."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chorus.platform.process import lifeline
from tests.soak_cache import prepared

lifeline.hold()
prepared.prepare()

from chorus.rank.worker import Worker  # noqa: E402
from tests.soak_cache.meter import Meter  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--listen")
    parser.add_argument("--threads")
    parser.add_argument("--metered", action="store_true")
    given = parser.parse_args()
    if given.metered:
        Meter(Path(given.listen.removeprefix("unix:")).parent / f"rank{given.rank}.bytes").install()
    return Worker(given.rank, given.listen).serve()


if __name__ == "__main__":
    sys.exit(main())
