"""`mlx_lm.server` with the BLAS that Chorus uses: without it, the comparison would be one of BLAS libraries."""

from __future__ import annotations

import argparse
import sys

from chorus import platform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, required=True, help="BLAS threads of this process")
    own, upstream = parser.parse_known_args()
    platform.prepare(own.threads)
    with platform.keep_file_limit():
        from mlx_lm import server
    sys.argv = ["mlx_lm.server", *upstream]
    server.main()


if __name__ == "__main__":
    main()
