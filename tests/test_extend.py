"""The names that extensions may rely on, and the documentation that shows them, as a package of other people's."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chorus import extend
from chorus.models import architectures
from chorus.transport import catalog

DOCUMENT = Path(__file__).parents[1] / "docs" / "new-architecture.md"


def blocks(document: Path) -> list[tuple[str, str]]:
    """The modules that a document shows, by name."""
    return re.findall(r"```python\n# my_package\.(\w+)\n(.*?)```", document.read_text(), re.DOTALL)


BLOCKS = blocks(DOCUMENT)


@pytest.mark.parametrize("name", extend.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(extend, name) is not None


def test_no_other_name_is_promised() -> None:
    with pytest.raises(AttributeError, match=r"chorus\.extend has no Stage"):
        extend.Stage  # noqa: B018


def test_what_needs_mlx_waits_until_it_is_used() -> None:
    program = "import sys, chorus.extend; sys.exit(any(name.startswith('mlx') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_the_document_uses_what_is_promised_and_nothing_else() -> None:
    assert len(BLOCKS) == DOCUMENT.read_text().count("```python") == 2
    imports = [node for _, code in BLOCKS for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports} == {"chorus.extend"}
    assert {alias.name for node in imports for alias in node.names} <= set(extend.__all__)
    assert set(re.findall(r"chorus[./](\w+)", DOCUMENT.read_text())) <= {"extend", "architectures"}


PLANS = """
import sys
from dataclasses import replace
from chorus.planning.costs import LinkSpeed, Links, Machine, Workload
from chorus.planning.facts import read_facts
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest
from pathlib import Path
facts = replace(read_facts(Path(sys.argv[1])), model_type="my_model")
nodes = [Machine(name, "metal", 16 * 10**9, 1e12, 1e11) for name in ("one", "other")]
links = Links(LinkSpeed(1e-4, 5e9, 3e-5))
work = Workload(context=facts.context, prompt=16, output=16)
made = plan(facts, nodes, links, work, PlanRequest(parallel="tensor"))
assert made.weights == (1, 1), made
assert not any(name.startswith("mlx") for name in sys.modules)
"""

DIVIDES = """
from chorus.extend import PipelineRule, SplitError
from chorus.models.architectures import tensor_rule
from chorus.rank.pipeline import rules, stage
assert isinstance(rules.by_name("my_model"), PipelineRule)
assert rules.by_name("my_model").flow.wires == 2
assert tensor_rule("nobody", "my_model").sums == 2
try:
    rules.by_name("my_model").check({"layers_per_group": 4}, [6])
except SplitError as error:
    assert "cut at a multiple of 4" in str(error)
else:
    raise AssertionError("cut inside a group")
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    return install(tmp_path, DOCUMENT, architectures.ENTRY_POINTS)


def install(folder: Path, document: Path, group: str) -> dict[str, str]:
    """The package of a document, installed for whoever gets this environment."""
    (folder / "my_package").mkdir()
    for module, code in blocks(document):
        (folder / "my_package" / f"{module}.py").write_text(code)
    described = folder / "my_package-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (entry,) = re.findall(r"```toml\n(.*?)```", document.read_text(), re.DOTALL)
    entry = entry.replace(f'[project.entry-points."{group}"]', f"[{group}]")
    (described / "entry_points.txt").write_text(entry.replace('"', ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def run(program: str, environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


TRANSPORTS = Path(__file__).parents[1] / "docs" / "new-transport.md"
LISTS = """
import sys
from importlib import import_module
from chorus.transport import catalog
assert catalog.get("files").stages and "files" in catalog.help_for("machine")
assert not any(name.startswith("mlx") for name in sys.modules)
module, _, function = catalog.get("files").opens.partition(":")
assert callable(getattr(import_module(module), function))
"""


def test_a_packages_transport_is_offered_without_loading_mlx(tmp_path: Path) -> None:
    environment = install(tmp_path, TRANSPORTS, catalog.ENTRY_POINTS)
    run(LISTS, environment)
    code = "".join(code for _, code in blocks(TRANSPORTS))
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and node.level == 0]
    ours = [node for node in imports if (node.module or "").startswith("chorus")]
    assert {node.module for node in ours} == {"chorus.extend"}
    assert {alias.name for node in ours for alias in node.names} <= set(extend.__all__)


def test_the_planner_offers_a_packages_architecture_without_loading_mlx(
    installed: dict[str, str], tmp_path: Path
) -> None:
    from tests.support.tiny_model import write_tiny_model

    folder = write_tiny_model(tmp_path / "tiny", "llama", tokenizer=False)
    run(PLANS, installed, str(folder))


def test_ranks_divide_a_packages_architecture_by_its_own_rules(installed: dict[str, str]) -> None:
    run(DIVIDES, installed)
