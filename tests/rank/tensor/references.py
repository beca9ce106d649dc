"""The whole models' conversations, each once for all divisions.

`python -m tests.rank.tensor.references FOLDER RANKS…`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.rank.tensor.driver import cases, whole
from tests.rank.tensor.spoken import reference_file, save


def main() -> None:
    folder = Path(sys.argv[1])
    for ranks in map(int, sys.argv[2:]):
        for case in cases(ranks):
            if not (file := reference_file(folder, case)).exists():
                save(file, whole(case))


if __name__ == "__main__":
    main()
