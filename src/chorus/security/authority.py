"""The cluster's own authority: it lives where the token was made, and signs whoever proved to know the token."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chorus.errors import ChorusError
from chorus.security.expelled import Expelled
from chorus.security.identity import (
    CLOCK_SKEW,
    Identity,
    fingerprint,
    make_key,
    make_request,
    own_key,
    private_pem,
    unsigned,
)
from chorus.security.member import COORDINATOR, NODE, Member, NotTrusted
from chorus.security.names import server_name
from chorus.security.node_folder import check_name, write_private
from chorus.security.token import Token

AUTHORITY_LIFE = datetime.timedelta(days=3650)
CERTIFICATE_LIFE = datetime.timedelta(days=180)


class NoAuthority(ChorusError):
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
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            self._token_text()
        except FileNotFoundError as error:
            raise NoAuthority(f"{folder} holds no cluster: run `chorus token new` first") from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @classmethod
    def create(cls, folder: Path) -> Authority:
        if (folder / "ca.key").exists():
            raise NoAuthority(
                f"{folder} already holds a cluster: `chorus token show` prints its token, `rotate` replaces it"
            )
        key = make_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chorus cluster")])
        certificate = (
            unsigned(name, key.public_key(), AUTHORITY_LIFE)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        write_private(folder / "token", Token.new().text.encode())
        # The key comes last: a folder with a key is a whole one.
        write_private(folder / "ca.key", private_pem(key))
        return cls(folder)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def token(self) -> Token:
        """The one in force now, whichever process rotated it."""
        return Token.parse(self._token_text()).naming(fingerprint(self.certificate.public_key()))

    def _token_text(self) -> str:
        return (self.folder / "token").read_text()

    def rotate(self) -> Token:
        """Whoever has joined stays; whoever only knows the old token can no longer join."""
        write_private(self.folder / "token", Token.new().text.encode())
        return self.token

    def sign(
        self, request_pem: bytes, name: str, role: str = NODE, life: datetime.timedelta = CERTIFICATE_LIFE
    ) -> bytes:
        """A certificate for the key in the request, under that key's own id; nothing else in it is believed."""
        request = x509.load_pem_x509_csr(request_pem)
        public = request.public_key()
        if not request.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("the certificate request is not signed by its own elliptic-curve key")
        node_id = fingerprint(public)
        if node_id in self.expelled().ids:
            raise NotTrusted(f"{check_name(name)} ({node_id}) was expelled")
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, check_name(name)),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            ]
        )
        certificate = (
            unsigned(subject, public, life - CLOCK_SKEW)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(node_id))]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        self._record(Issued(f"{certificate.serial_number:x}", node_id, name, role))
        return certificate.public_bytes(serialization.Encoding.PEM)

    def renew(self, request_pem: bytes, member: Member) -> bytes:
        """A new certificate for a node that is on the line, under the name that it asks for."""
        request = x509.load_pem_x509_csr(request_pem)
        if fingerprint(request.public_key()) != member.node_id:
            raise NotTrusted(f"{member.name} asks for a certificate for the key of another")
        return self.sign(request_pem, requested_name(request_pem), member.role)

    def issue(self, folder: Path, name: str, role: str, life: datetime.timedelta = CERTIFICATE_LIFE) -> Identity:
        """An identity for a process of this machine."""
        certificate = self.sign(make_request(own_key(folder), name), name, role, life)
        return Identity.store(folder, certificate, self.certificate_pem, self.expelled_list(), self.token.tag)

    def identity(self, folder: Path, name: str, role: str) -> Identity:
        """That of this machine's folder: the one there, as long as it is good, or a new one for the same key."""
        found = Identity.find(folder)
        if found is None or found.authority != self.certificate_pem or found.is_due(name):
            return self.issue(folder, name, role)
        found.update_expelled(self.expelled_list())
        return found

    def coordinator(self, name: str) -> Identity:
        return self.identity(self.folder / "coordinator", name, COORDINATOR)

    def keep(self, identity: Identity) -> None:
        """To be called again and again for an identity in use here: renews it and tells it who was expelled."""
        identity.update_expelled(self.expelled_list())
        name, role = identity.member.name, identity.member.role
        if identity.is_due(name):
            identity.renew(self.sign(make_request(own_key(identity.folder), name), name, role))

    def expel(self, name: str) -> frozenset[str]:
        """The ids of that node; whatever certificate they have or will show is refused from now on."""
        nodes = [issued for issued in self.issued() if issued.role == NODE]
        gone = frozenset(issued.node_id for issued in nodes if name in (issued.name, issued.node_id))
        with self._alone():
            before = self.expelled()
            if gone - before.ids:
                after = Expelled(before.number + 1, before.ids | gone)
                write_private(self.folder / "expelled.json", after.signed(self._key).encode())
        return gone

    def expelled(self) -> Expelled:
        return Expelled.read(self.expelled_list(), self.certificate)

    def expelled_list(self) -> str:
        """Signed; empty where nobody was ever expelled."""
        file = self.folder / "expelled.json"
        return file.read_text() if file.is_file() else ""

    def issued(self) -> list[Issued]:
        file = self.folder / "issued.jsonl"
        return [Issued(**json.loads(line)) for line in file.read_text().splitlines()] if file.is_file() else []

    def certify(self, certificate: x509.CertificateBuilder) -> x509.Certificate:
        """What is no member's, such as the API's own."""
        return certificate.issuer_name(self.certificate.subject).sign(self._key, hashes.SHA256())

    def _record(self, issued: Issued) -> None:
        """Written as a whole: half a line, left by a full disk, would hide who else there is."""
        with self._alone():
            listed = [*self.issued(), issued]
            text = "".join(f"{json.dumps(asdict(one))}\n" for one in listed)
            write_private(self.folder / "issued.jsonl", text.encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two processes that write at the same moment must not undo each other."""
        with (self.folder / "expelled.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def requested_name(request_pem: bytes) -> str:
    """What the sender of a certificate request wants to be called."""
    names = x509.load_pem_x509_csr(request_pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


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
