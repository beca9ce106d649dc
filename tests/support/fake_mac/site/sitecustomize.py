"""Found first on PYTHONPATH: every Python process that a test starts so takes chorus.platform's answers from a Mac.

Only functions of ours are replaced. `sys.platform` stays, or libraries would load what is not there.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from types import ModuleType


def system(module: ModuleType) -> None:
    module.name = lambda: "Darwin"  # type: ignore[attr-defined]
    module.machine = lambda: "arm64"  # type: ignore[attr-defined]


def service(module: ModuleType) -> None:
    """A user's own folders lie in HOME, which a test sets; those of the system need another place, and sudo."""
    module.DAEMONS = Path(os.environ["FAKE_MAC_DAEMONS"])  # type: ignore[attr-defined]
    module.is_root = lambda: False  # type: ignore[attr-defined]


REPLACED = {"chorus.platform.system": system, "chorus.platform.service": service}


runpy.run_path(str(Path(__file__).parents[2] / "changed_modules.py"))["install"](REPLACED)
