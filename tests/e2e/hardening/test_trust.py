"""Who you talk to is who the certificate says, after every expulsion too."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest

from tests.cluster.harness import Cluster, Process, cluster, eventually, url_of
from tests.e2e.hardening.members import card_of, dial, gives_files, tls
from tests.support.tiny_model import write_tiny_model


@dataclass
class Running:
    made: Cluster
    one: Process
    two: Process
    server: Process
    ports: dict[str, int]

    def identity(self, name: str) -> Path:
        return self.made.folder / f"state-{name}" / "identity"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny", "llama", vocab_size=512)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Running]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        (one, first), (two, second) = made.agent("one"), made.agent("two")
        server = made.serve(tiny, ["--peer", f"127.0.0.1:{first}", "--peer", f"127.0.0.1:{second}"])
        url_of(server)
        ports = {"door": first, "control": first + 1, "rank": first + 2, "two": second}
        ports["coordinator's door"] = int(server.wait_for(r"is in the cluster, on 127\.0\.0\.1:(\d+)")[1])
        yield Running(made, one, two, server, ports)


@pytest.mark.parametrize("where", ["door", "control", "rank"])
def test_no_port_of_a_node_takes_an_older_tls(running: Running, where: str) -> None:
    """Finding 19."""
    protocol = "chorus-card/1" if where == "door" else "h2"
    identity = running.identity("one")
    with dial(running.ports[where], tls(identity, protocol)) as connection:
        assert connection.version() == "TLSv1.3"
    with pytest.raises(OSError):  # noqa: PT011 - how it is refused is the library's to say
        dial(running.ports[where], tls(identity, protocol, ssl.TLSVersion.TLSv1_2)).close()


def test_a_certificate_is_good_for_the_name_of_its_own_node_only(running: Running) -> None:
    """Finding 4: a node that another is taken for is refused before anything is said."""
    two = running.identity("two")
    theirs = subprocess.run(
        ["openssl", "x509", "-in", str(two / "cert.pem"), "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    name = re.search(r"DNS:(\S+)", theirs)
    assert name
    secrets = ((two / f"{part}.pem").read_bytes() for part in ("ca", "key", "cert"))
    credentials = grpc.ssl_channel_credentials(*secrets)
    options = [("grpc.ssl_target_name_override", name[1])]
    with grpc.secure_channel(f"127.0.0.1:{running.ports['rank']}", credentials, options) as channel:
        push = channel.stream_unary("/chorus.tensors.v1.Tensors/Push")
        with pytest.raises(grpc.RpcError) as refused:
            push(iter([b"x"]), timeout=60)
    assert "ostname" in refused.value.details(), refused.value.details()


def test_an_expelled_node_is_refused_in_every_direction_whatever_it_calls_itself(
    running: Running, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Finding 4."""
    made, port = running.made, running.ports["two"]
    gone = Path(shutil.copytree(running.identity("two"), tmp_path / "gone"))
    doors = [running.ports["door"], running.ports["coordinator's door"]]
    assert all(card_of(door, gone) for door in doors)
    assert all(gives_files(door, gone) for door in doors)

    old_token = made.token.text
    expel = made.chorus("expel", "token", "expel", "two")
    assert expel.wait() == 0, expel.log
    began = time.monotonic()
    # It is heard nowhere, and the coordinator has hung up.
    assert eventually(lambda: not any(card_of(door, gone) or gives_files(door, gone) for door in doors))
    assert eventually(lambda: "two is gone" in running.server.log), running.server.log
    record_property("seconds until an expelled node was refused everywhere", round(time.monotonic() - began, 1))

    # It is dialled by nobody: not by a member that is told its address, and not under another id and name.
    running.two.stop()
    (made.folder / "state-two" / "node_id").write_text("0123456789abcdef")
    refusals = running.server.log.count("was expelled")
    made.agent("two", "--name", "other", port=port, token=old_token)[0].wait_for("is in the cluster")
    assert eventually(
        lambda: running.server.log.count("was expelled") > refusals or "other is there" in running.server.log
    ), running.server.log
    assert "other is there" not in running.server.log
    status = made.chorus("status", "status", "--json")
    assert status.wait() == 0, status.log
    assert port not in [int(node["address"].rpartition(":")[2]) for node in json.loads(status.log)["nodes"]]
    fetched = subprocess.run(
        [sys.executable, "-c", FETCH, str(running.identity("one")), str(port), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "was expelled" in fetched.stdout, fetched.stdout + fetched.stderr


FETCH = """
import pathlib, sys
from chorus.cluster.transfer.share import SharedFile, TransferFailed
from chorus.cluster.transfer.fetch import fetch
from chorus.cluster.transfer.sources import FileSource
from chorus.security.identity import Identity
identity, port, folder = sys.argv[1:]
source = FileSource(f"127.0.0.1:{port}", frozenset(["config.json"]))
try:
    fetch([SharedFile("config.json", 10)], pathlib.Path(folder), "share", [source], Identity(pathlib.Path(identity)))
except TransferFailed as error:
    print(error)
"""


@pytest.mark.linux("namespaces")
@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-rn", "true"], check=False).returncode != 0,
    reason="announcements need a network of their own",
)
def test_a_running_coordinator_lets_in_nodes_with_the_token_of_now(tiny: Path, tmp_path: Path) -> None:
    """Finding 18: the token was rotated after the coordinator had started."""
    script = 'ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && exec "$@"'
    driver = [sys.executable, "-m", "tests.e2e.hardening.rotated_token", str(tmp_path), str(tiny)]
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", script, "sh", *driver], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_token_given_on_standard_input_stands_in_no_list_of_processes(tmp_path: Path) -> None:
    """Finding 19."""
    with cluster(tmp_path) as made:
        secret = tmp_path / "typed"
        secret.write_text(made.token.text)
        words = ["join", "--token", "-", "--listen", "127.0.0.1:0", "--no-announce", "--name", "quiet"]
        with secret.open() as typed:
            agent = made.chorus("quiet", *words, state=tmp_path / "state-quiet", stdin=typed)
        agent.wait_for("waiting on")
        assert made.token.text not in " ".join(psutil.Process(agent.process.pid).cmdline())


def test_a_token_among_the_arguments_is_warned_of(tmp_path: Path) -> None:
    """Finding 19."""
    with cluster(tmp_path) as made:
        words = ["join", "--token", made.token.text, "--listen", "127.0.0.1:0", "--no-announce", "--name", "loud"]
        agent = made.chorus("loud", *words, state=tmp_path / "state-loud")
        agent.wait_for("waiting on")
        assert "--token-file" in agent.log
