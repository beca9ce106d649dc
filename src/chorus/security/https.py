"""A certificate for the API from the cluster's own authority: for all names of this machine, renewed before its end."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import re
import socket
from collections.abc import Sequence

import psutil
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chorus.security.authority import Authority, NoAuthority
from chorus.security.identity import make_key, private_pem, unsigned
from chorus.security.node_folder import state_dir, write_private

log = logging.getLogger(__name__)

LIFE = datetime.timedelta(days=90)
RENEW_BEFORE = datetime.timedelta(days=30)
LOOK_SECONDS = 3600.0
"""How often to see whether a certificate is due: days before it ends."""
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)


class OwnCertificate:
    """Key and certificate lie in one file, so that no reader ever sees one without the other."""

    def __init__(self, more_names: Sequence[str] = ()) -> None:
        folder = state_dir() / "authority"
        try:
            self._authority = Authority(folder)
        except NoAuthority:
            self._authority = Authority.create(folder)
        self._more_names = more_names
        self.file = folder / "https.pem"
        self.renew_if_due()

    async def keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.renew_if_due()
            except OSError as error:
                log.warning("cannot renew %s: %s", self.file, error.strerror)

    def renew_if_due(self) -> None:
        names = own_names(self._more_names)
        if not self._is_good_for(names):
            write_private(self.file, make_certificate(self._authority, names))

    def _is_good_for(self, names: Sequence[x509.GeneralName]) -> bool:
        """Long enough still, for all our names, and from the authority that is here now."""
        try:
            found = x509.load_pem_x509_certificate(self.file.read_bytes())
            found.verify_directly_issued_by(self._authority.certificate)
            named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature):
            return False
        left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        return left > RENEW_BEFORE and set(names) <= set(named)


def own_names(more: Sequence[str] = ()) -> list[x509.GeneralName]:
    """Those that clients may call this machine by, and its addresses as they are now."""
    own = socket.gethostname().lower()
    short = own.partition(".")[0]
    addresses = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
    found: dict[x509.GeneralName, None] = {}
    for text in ("localhost", own, short, f"{short}.local", "127.0.0.1", "::1", *more, *addresses):
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not address.is_unspecified:
                found[x509.IPAddress(address)] = None
        except ValueError:
            if _NAME.fullmatch(text):
                found[x509.DNSName(text)] = None
    return list(found)


def make_certificate(authority: Authority, names: Sequence[x509.GeneralName]) -> bytes:
    key = make_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chorus API")])
    certificate = authority.certify(
        unsigned(subject, key.public_key(), LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.certificate.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
        # It never opens a door to the cluster: that takes a client's.
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)
