"""A coordinator that hears announcements, a token rotated under it, and a node that joins with the new one.

Run inside a network namespace of its own: python -m tests.e2e.hardening.rotated_token FOLDER MODEL
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.harness import cluster, complete, free_block, url_of


def main(folder: Path, tiny: Path) -> None:
    with cluster(folder / "cluster") as made:
        server = made.serve(tiny, ["--nodes", "1", "--start-timeout", "240"])
        server.wait_for("waiting for nodes")
        rotate = made.chorus("rotate", "token", "rotate")
        assert rotate.wait() == 0, rotate.log
        words = ["join", "--listen", f"127.0.0.1:{free_block()}", "--name", "late"]
        made.chorus("late", *words, state=folder / "state-late", CHORUS_TOKEN=rotate.log.split()[0])
        assert complete(url_of(server))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
