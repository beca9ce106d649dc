"""What a process needs to take part in mutual TLS: its key and certificate, the authority's, and whom to refuse.

A folder of files, so that an agent hands it to its ranks by name. Certificate and list of expelled nodes are read again
whenever their files change: renewing and expelling need no restart.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from chorus.platform.storage.files import Version, version
from chorus.security.expelled import Expelled
from chorus.security.lines import Lines
from chorus.security.member import Member, NotTrusted
from chorus.security.names import server_name
from chorus.security.node_folder import write_private

FINGERPRINT_BYTES = 16
CLOCK_SKEW = datetime.timedelta(days=1)
"""Clocks of machines on a desk disagree."""
_RENEWED_AFTER = 1 / 3
"""Of a certificate's life: the rest of it is left for a coordinator to come by."""

_T = TypeVar("_T")


class _Reread(Generic[_T]):
    """A file's meaning, looked at again whenever the file has changed."""

    def __init__(self, file: Path, parse: Callable[[bytes], _T]) -> None:
        self._file = file
        self._parse = parse
        self._seen: tuple[Version, _T] | None = None

    def __call__(self) -> _T:
        now, seen = version(self._file), self._seen
        if seen is None or seen[0] != now:
            seen = self._seen = now, self._parse(self._file.read_bytes())
        return seen[1]


class Identity:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = (folder / "ca.pem").read_bytes()
        self._certificate = _Reread(folder / "cert.pem", x509.load_pem_x509_certificate)
        self._expelled = _Reread(folder / "expelled.json", self._parse_expelled)
        self._told = Expelled()
        member_of(self.certificate)
        self.lines = Lines(self.expelled)

    @classmethod
    def store(cls, folder: Path, certificate: bytes, authority: bytes, expelled: str, token_tag: str) -> Identity:
        """Beside the key that the certificate is for. Raises NotTrusted where the authority has not made it for us."""
        _check_issued(folder, certificate, authority)
        write_private(folder / "ca.pem", authority)
        write_private(folder / "token_tag", token_tag.encode())
        write_private(folder / "expelled.json", expelled.encode())
        # The certificate comes last: a folder with one is whole.
        write_private(folder / "cert.pem", certificate)
        return cls(folder)

    @classmethod
    def find(cls, folder: Path) -> Identity | None:
        """None where there is none, or one that is of no use any more."""
        try:
            found = cls(folder)
        except (FileNotFoundError, NotTrusted):
            return None
        return None if found.ran_out else found

    @cached_property
    def _authority(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.authority)

    @property
    def cluster(self) -> str:
        """Public: the authority's fingerprint, shortened."""
        return self._authority.fingerprint(hashes.SHA256()).hex()[:16]

    @property
    def certificate(self) -> bytes:
        return self._certificate().public_bytes(serialization.Encoding.PEM)

    @property
    def member(self) -> Member:
        return member_of(self.certificate)

    @property
    def token_tag(self) -> str:
        return (self.folder / "token_tag").read_text().strip()

    @property
    def ran_out(self) -> bool:
        return datetime.datetime.now(datetime.UTC) >= self._certificate().not_valid_after_utc

    @property
    def left_seconds(self) -> float:
        """How long the certificate is still good; below 0, since when it is not."""
        return (self._certificate().not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds()

    def is_due(self, name: str) -> bool:
        """Whether it is time for a new certificate, or for one under another name."""
        certificate = self._certificate()
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        due = certificate.not_valid_before_utc + life * _RENEWED_AFTER
        return datetime.datetime.now(datetime.UTC) >= due or self.member.name != name

    def renew(self, certificate: bytes) -> None:
        """Raises NotTrusted where the authority has not made it for our key."""
        _check_issued(self.folder, certificate, self.authority)
        write_private(self.folder / "cert.pem", certificate)

    def forget(self) -> None:
        (self.folder / "cert.pem").unlink(missing_ok=True)

    def expelled(self) -> frozenset[str]:
        return max(self._expelled(), self._told, key=lambda known: known.number).ids

    def expelled_list(self) -> str:
        """As the authority signed it."""
        return (self.folder / "expelled.json").read_text()

    def update_expelled(self, text: str) -> None:
        """Take a list, if it is a later one. Raises BadList where the authority has not signed it."""
        told = self._parse_expelled(text.encode())
        if told.number > self._expelled().number:
            try:
                # First for our ranks, which read the file: who is refused here is refused by them too.
                write_private(self.folder / "expelled.json", text.encode())
            finally:
                self._told = told  # it holds here even if the disk is full

    def _parse_expelled(self, text: bytes) -> Expelled:
        return Expelled.read(text.decode(), self._authority)

    def check(self, certificate_pem: bytes) -> Member:
        """Of a peer whose chain TLS has verified: raises NotTrusted when it was expelled."""
        member = member_of(certificate_pem)
        if member.node_id in self.expelled():
            raise NotTrusted(f"{member.name} ({member.node_id}) was expelled")
        return member

    def check_peer(self, connection: ssl.SSLSocket | ssl.SSLObject) -> Member:
        """Who is at the other end; raises NotTrusted when it shows no certificate, or was expelled."""
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            raise NotTrusted("it shows no certificate")
        return self.check(ssl.DER_cert_to_PEM_cert(certificate).encode())

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self._key(), self.certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        """With the certificate of now. (gRPC's credentials that can change crash when they do, if a handshake is under
        way: seen with 1.85.)
        """
        return grpc.ssl_server_credentials([(self._key(), self.certificate)], self.authority, require_client_auth=True)

    def server_context(self, protocols: list[str]) -> ssl.SSLContext:
        """For a door that lets in members and, for the join protocol alone, strangers."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, protocols)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_context(self, protocols: list[str], named: bool) -> ssl.SSLContext:
        """Believes members of this cluster; only the one that is asked for, where it is `named`."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT, protocols)
        context.check_hostname = named
        return context

    def _context(self, side: int, protocols: list[str]) -> ssl.SSLContext:
        context = _context(side, protocols)
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        context.load_verify_locations(cadata=self.authority.decode())
        return context

    def _key(self) -> bytes:
        return (self.folder / "key.pem").read_bytes()


def stranger_server_context(folder: Path, protocols: list[str]) -> ssl.SSLContext:
    """For a node that belongs to no cluster yet: a throw-away certificate, trusted only through the token's proof."""
    key = make_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chorus node without a cluster")])
    life = datetime.timedelta(days=3650)
    certificate = unsigned(name, key.public_key(), life).issuer_name(name).sign(key, hashes.SHA256())
    file = folder / "stranger.pem"
    write_private(file, private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
    context = _context(ssl.PROTOCOL_TLS_SERVER, protocols)
    context.load_cert_chain(file)
    return context


def stranger_client_context(protocols: list[str]) -> ssl.SSLContext:
    """Believes any certificate: the join protocol binds the one it sees into the proof."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, protocols)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@lru_cache(maxsize=256)
def member_of(certificate_pem: bytes) -> Member:
    """The id is the key's own; raises NotTrusted where the certificate is valid for another name than that."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    node_id = fingerprint(certificate.public_key())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    if names.get_values_for_type(x509.DNSName) != [server_name(node_id)]:
        raise NotTrusted("a certificate of an older Chorus, which names no node: join again with the token")

    def field(kind: x509.ObjectIdentifier) -> str:
        values = certificate.subject.get_attributes_for_oid(kind)
        return str(values[0].value) if values else ""

    return Member(field(NameOID.COMMON_NAME), node_id, field(NameOID.ORGANIZATIONAL_UNIT_NAME))


def fingerprint(key: CertificatePublicKeyTypes) -> str:
    """What a key is called: nobody else can have a key of that name."""
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).digest()[:FINGERPRINT_BYTES].hex()


def make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def own_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Made once: the key of a folder is who its process is, in every cluster it ever joins."""
    file = folder / "key.pem"
    if not file.is_file():
        fresh = folder / f"fresh-{os.getpid()}.pem"
        write_private(fresh, private_pem(make_key()))
        try:
            os.link(fresh, file)
        except FileExistsError:
            pass  # another process of this machine was faster, and its key is the one
        finally:
            fresh.unlink()
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NotTrusted(f"{file} is no elliptic-curve key: remove it and join again")
    return key


def own_id(folder: Path) -> str:
    return fingerprint(own_key(folder).public_key())


def make_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def unsigned(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    """What all our certificates begin with: whose it is, and that it is valid, with some slack, from now on."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_issued(folder: Path, certificate: bytes, authority: bytes) -> None:
    issued = x509.load_pem_x509_certificate(certificate)
    try:
        issued.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        raise NotTrusted("a certificate that the cluster's authority has not signed") from None
    if member_of(certificate).node_id != own_id(folder):
        raise NotTrusted("a certificate for another key than ours")


def _context(side: int, protocols: list[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(protocols)
    return context
