"""The certificate of the API: read again when its files change, so that renewing one needs no restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.storage.files import Version, version

log = logging.getLogger(__name__)


class CertificateError(ChorusError):
    pass


class Certificate:
    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen = self._look()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For one more connection; a file that is wrong is told once, and the last good one kept."""
        if (seen := self._look()) != self._seen:
            self._seen = seen
            try:
                self._context = self._load()
                log.info("read the certificate %s again", self._files[0])
            except CertificateError as error:
                log.warning("%s; the one before stays in use", error)
        return self._context

    def _look(self) -> list[Version] | None:
        try:
            return [version(file) for file in self._files]
        except OSError:
            return None

    def _load(self) -> ssl.SSLContext:
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(certificate, key, _no_password)
        except ssl.SSLError as error:
            raise CertificateError(f"{certificate} and {key}: no certificate with its key: {error.reason}") from None
        except OSError as error:
            raise CertificateError(f"cannot read {certificate} or {key}: {error.strerror}") from None
        except ValueError as error:
            raise CertificateError(f"{key}: {error}") from None
        return context


def _no_password() -> str:
    """OpenSSL would ask for it on the terminal, and wait."""
    raise ValueError("the key has a password: give one without")
