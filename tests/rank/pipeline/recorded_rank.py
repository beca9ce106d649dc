"""A rank's process that says in which number types its layers compute."""

import sys

from chorus.rank.__main__ import main
from chorus.rank.upstream import lean

install = lean.install


def install_and_record() -> None:
    install()
    # Before this nothing may have imported MLX.
    from tests.rank.pipeline import recorded_types

    recorded_types.print_them()


if __name__ == "__main__":
    lean.install = install_and_record
    sys.exit(main())
