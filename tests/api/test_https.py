"""HTTPS: with certificates that are renewed while it runs, and with one of the cluster's own."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from chorus.security.https import OwnCertificate
from chorus.security.node_folder import authority_file
from chorus.security.tls import Certificate, CertificateError
from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import DEADLINE
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def serial(api: ApiProcess, context: ssl.SSLContext) -> int:
    """Of the certificate that a new connection is shown."""
    with (
        socket.create_connection(api.address, DEADLINE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        assert connection.version() == "TLSv1.3"
        shown = connection.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_renewed_certificate_is_shown_from_then_on_and_a_broken_one_never(
    state: Path, start_api: Callable[..., ApiProcess]
) -> None:
    first = OwnCertificate()
    # Also a busy machine greets within it.
    limits = {"head_timeout_seconds": 5}
    api = start_api(tls_certificate=str(first.file), tls_key=str(first.file), limits=limits)
    context = trusting(authority_file())
    shown = serial(api, context)
    assert serial(api, context) == shown
    first.file.write_text("no certificate")
    assert serial(api, context) == shown
    assert "no certificate" in api.log.read_text()
    OwnCertificate()
    assert serial(api, context) != shown
    assert httpx.get(f"{api.url}/health", verify=context, timeout=DEADLINE).status_code == 200
    with socket.create_connection(api.address, DEADLINE) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(api.address, DEADLINE) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")


def test_a_certificate_is_made_once_and_again_when_it_no_longer_fits(state: Path) -> None:
    made = OwnCertificate().file.read_bytes()
    assert OwnCertificate().file.read_bytes() == made
    assert oct(OwnCertificate().file.stat().st_mode & 0o777) == "0o600"
    named = OwnCertificate(["chat.example"]).file.read_bytes()
    assert named != made
    names = x509.load_pem_x509_certificate(named).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert {"chat.example", "localhost"} <= set(names.value.get_values_for_type(x509.DNSName))


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"missing\.pem"):
        Certificate(tmp_path / "missing.pem", tmp_path / "missing.pem")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(CertificateError, match=r"wrong\.pem"):
        Certificate(wrong, wrong)


def test_serve_makes_its_own_and_the_other_commands_trust_it(state: Path, tmp_path: Path) -> None:
    environment = {"CHORUS_STATE": str(state)}
    with ChorusServer(write_tiny_model(tmp_path / "model"), ["--https"], tmp_path, environment) as server:
        assert server.url.startswith("https://")
        assert f"--cacert {authority_file()}" in server.log
        command = [sys.executable, "-c", "from chorus.cli import main; main()", "test", "--url", server.url, "--json"]
        asked = subprocess.run(
            [*command, "--tokens", "2"], capture_output=True, env={**os.environ, **environment}, timeout=120
        )
        assert json.loads(asked.stdout)["usage"]["completion_tokens"] == 2, asked.stderr
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health", timeout=DEADLINE)
