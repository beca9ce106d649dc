"""What a process needs to take part in mutual TLS: its key and certificate, the authority's, and whom to refuse.

A folder with four files, so that an agent hands it to its ranks by name. The list of refused certificates is looked at
again whenever the file changes: expelling a node needs no restart.
"""

from __future__ import annotations

import datetime
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from chorus.cluster.agent_paths import write_private

COORDINATOR = "coordinator"
NODE = "node"
SERVER_NAME = "chorus-node"
"""Every certificate carries this name: peers are known by the authority that signed them, not by their address."""
CHANNEL_OPTIONS = [("grpc.ssl_target_name_override", SERVER_NAME)]


class NotTrusted(Exception):
    """A peer's certificate is not acceptable; the reason is for our log, not for the peer."""


@dataclass(frozen=True)
class Member:
    """Whom a certificate was given to."""

    name: str
    node_id: str
    role: str
    serial: str


class Identity:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = (folder / "cert.pem").read_bytes()
        self.authority = (folder / "ca.pem").read_bytes()
        self.member = member_of(self.certificate)
        self._revoked: frozenset[str] = frozenset()
        self._revoked_seen: tuple[int, int] | None = None

    @classmethod
    def store(
        cls,
        folder: Path,
        key: ec.EllipticCurvePrivateKey,
        certificate: bytes,
        authority: bytes,
        revoked: frozenset[str],
        token_tag: str,
    ) -> Identity:
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(folder / "key.pem", private)
        write_private(folder / "ca.pem", authority)
        write_private(folder / "token_tag", token_tag.encode())
        write_private(folder / "revoked.json", json.dumps(sorted(revoked)).encode())
        # The certificate comes last: a folder with one is whole.
        write_private(folder / "cert.pem", certificate)
        return cls(folder)

    @classmethod
    def find(cls, folder: Path) -> Identity | None:
        return cls(folder) if (folder / "cert.pem").is_file() else None

    @property
    def cluster(self) -> str:
        """Public: the authority's fingerprint, shortened."""
        return x509.load_pem_x509_certificate(self.authority).fingerprint(hashes.SHA256()).hex()[:16]

    @property
    def token_tag(self) -> str:
        return (self.folder / "token_tag").read_text().strip()

    def forget(self) -> None:
        (self.folder / "cert.pem").unlink(missing_ok=True)

    def update_revoked(self, serials: frozenset[str]) -> None:
        if serials != self.revoked():
            write_private(self.folder / "revoked.json", json.dumps(sorted(serials)).encode())

    def revoked(self) -> frozenset[str]:
        file = self.folder / "revoked.json"
        try:
            stat = file.stat()
        except FileNotFoundError:
            return frozenset()
        seen = (stat.st_mtime_ns, stat.st_ino)
        if seen != self._revoked_seen:
            self._revoked, self._revoked_seen = frozenset(json.loads(file.read_text())), seen
        return self._revoked

    def check(self, certificate_pem: bytes) -> Member:
        """Of a peer whose chain TLS has verified: raises NotTrusted when it was expelled."""
        member = member_of(certificate_pem)
        if member.serial in self.revoked():
            raise NotTrusted(f"{member.name} ({member.node_id}) was expelled")
        return member

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self._key(), self.certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self._key(), self.certificate)], self.authority, require_client_auth=True)

    def server_context(self, protocols: list[str]) -> ssl.SSLContext:
        """For a door that lets in members and, for the join protocol alone, strangers."""
        context = _context(ssl.PROTOCOL_TLS_SERVER, protocols)
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        context.load_verify_locations(cadata=self.authority.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_context(self, protocols: list[str]) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, protocols)
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        context.load_verify_locations(cadata=self.authority.decode())
        return context

    def _key(self) -> bytes:
        return (self.folder / "key.pem").read_bytes()


def stranger_server_context(folder: Path, protocols: list[str]) -> ssl.SSLContext:
    """For a node that belongs to no cluster yet: a throw-away certificate, trusted only through the token's proof."""
    key = make_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chorus node without a cluster")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "stranger.pem"
    write_private(file, private + certificate.public_bytes(serialization.Encoding.PEM))
    context = _context(ssl.PROTOCOL_TLS_SERVER, protocols)
    context.load_cert_chain(file)
    return context


def stranger_client_context(protocols: list[str]) -> ssl.SSLContext:
    """Believes any certificate: the join protocol binds the one it sees into the proof."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, protocols)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def member_of(certificate_pem: bytes) -> Member:
    certificate = x509.load_pem_x509_certificate(certificate_pem)

    def field(kind: x509.ObjectIdentifier) -> str:
        values = certificate.subject.get_attributes_for_oid(kind)
        return str(values[0].value) if values else ""

    return Member(
        field(NameOID.COMMON_NAME),
        field(NameOID.SERIAL_NUMBER),
        field(NameOID.ORGANIZATIONAL_UNIT_NAME),
        f"{certificate.serial_number:x}",
    )


def make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def make_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _context(protocol: int, protocols: list[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(protocols)
    return context
