"""The cluster's own authority: it lives where the token was made, and signs whoever proved to know the token."""

from __future__ import annotations

import datetime
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chorus.cluster.agent_paths import check_name, write_private
from chorus.cluster.token import Token
from chorus.cluster.trust_identity import COORDINATOR, NODE, SERVER_NAME, Identity, make_key, make_request

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 1825
_SKEW = datetime.timedelta(days=1)
"""Clocks of machines on a desk disagree."""
_BOTH_ENDS = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class NoAuthority(Exception):
    """There is no cluster here yet, or there already is one."""


@dataclass(frozen=True)
class Issued:
    serial: str
    node_id: str
    name: str
    role: str


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        try:
            self._key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            self.token = Token.parse((folder / "token").read_text())
        except FileNotFoundError as error:
            raise NoAuthority(f"{folder} holds no cluster: run `chorus token new` first") from error

    @classmethod
    def create(cls, folder: Path) -> Authority:
        if (folder / "ca.key").exists():
            raise NoAuthority(
                f"{folder} already holds a cluster: `chorus token show` prints its token, `rotate` replaces it"
            )
        key = make_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chorus cluster")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        write_private(folder / "token", Token.new().text.encode())
        # The key comes last: a folder with a key is a whole one.
        write_private(folder / "ca.key", _pem(key))
        return cls(folder)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def rotate(self) -> Token:
        """Whoever has joined stays; whoever only knows the old token can no longer join."""
        self.token = Token.new()
        write_private(self.folder / "token", self.token.text.encode())
        return self.token

    def refresh(self) -> None:
        """Another process may have rotated the token."""
        self.token = Token.parse((self.folder / "token").read_text())

    def sign(self, request_pem: bytes, name: str, node_id: str, role: str = NODE) -> bytes:
        """A certificate for the key in the request; nothing else in the request is believed."""
        request = x509.load_pem_x509_csr(request_pem)
        public = request.public_key()
        if not request.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("the certificate request is not signed by its own elliptic-curve key")
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, check_name(name)),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
                x509.NameAttribute(NameOID.SERIAL_NUMBER, check_name(node_id)),
            ]
        )
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())  # type: ignore[arg-type]
        )
        self._record(Issued(f"{certificate.serial_number:x}", node_id, name, role))
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, folder: Path, name: str, node_id: str, role: str) -> Identity:
        """An identity for a process of this machine."""
        key = make_key()
        certificate = self.sign(make_request(key, name), name, node_id, role)
        return Identity.store(folder, key, certificate, self.certificate_pem, self.revoked(), self.token.tag)

    def coordinator(self, name: str, node_id: str) -> Identity:
        folder = self.folder / "coordinator"
        if (folder / "cert.pem").is_file():
            identity = Identity(folder)
            identity.update_revoked(self.revoked())
            return identity
        return self.issue(folder, name, node_id, COORDINATOR)

    def expel(self, name: str) -> list[Issued]:
        """Every certificate given to that node is refused from now on."""
        with self._lock:
            gone = [issued for issued in self.issued() if name in (issued.name, issued.node_id) and issued.role == NODE]
            serials = self.revoked() | {issued.serial for issued in gone}
            write_private(self.folder / "revoked.json", json.dumps(sorted(serials)).encode())
        return gone

    def revoked(self) -> frozenset[str]:
        file = self.folder / "revoked.json"
        return frozenset(json.loads(file.read_text())) if file.is_file() else frozenset()

    def issued(self) -> list[Issued]:
        file = self.folder / "issued.jsonl"
        return [Issued(**json.loads(line)) for line in file.read_text().splitlines()] if file.is_file() else []

    def certify(self, certificate: x509.CertificateBuilder) -> x509.Certificate:
        """What is no member's, such as the API's own."""
        return certificate.issuer_name(self.certificate.subject).sign(self._key, hashes.SHA256())  # type: ignore[arg-type]

    def _record(self, issued: Issued) -> None:
        with self._lock, (self.folder / "issued.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(issued)) + "\n")


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
