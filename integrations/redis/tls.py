"""Whom does TLS to the store trust, and what does it show?"""

from __future__ import annotations

import os
import ssl
from typing import Final

from loadgate.errors import PolicyError
from loadgate.integrations.redis.url import Address

# Reasons of OpenSSL that waiting does not cure: one side does not accept the other's certificate.
_REFUSED: Final = ("CERTIFICATE", "UNKNOWN_CA")


class Tls:
    """The TLS settings of one address. Changed certificates are read at the next connection.

    Args:
        address: Where they stand.

    Raises:
        PolicyError: A file is missing, or holds something else.
    """

    __slots__ = ("_address", "_context", "_read")

    def __init__(self, address: Address) -> None:
        self._address = address
        try:
            self._read = self._stamps()
            self._context = _context(address)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            names = "ca_certs, certfile or keyfile"
            raise PolicyError("url", f"{names} cannot be used: {error}") from error

    def context(self) -> ssl.SSLContext:
        """What to connect with.

        Raises:
            OSError: A file is gone, or holds something else by now.
        """
        # Reading the system's certificates takes 10 ms, too long for every attempt to connect.
        stamps = self._stamps()
        if stamps != self._read:
            self._context = _context(self._address)
            self._read = stamps
        return self._context

    def _stamps(self) -> list[tuple[int, int]]:
        address = self._address
        files = (address.ca_certs, address.certfile, address.keyfile)
        found = [os.stat(file) for file in files if file is not None]
        return [(one.st_mtime_ns, one.st_ino) for one in found]


def _context(address: Address) -> ssl.SSLContext:
    trusted = address.ca_certs
    if trusted is not None and os.path.isdir(trusted):
        context = ssl.create_default_context(capath=trusted)
    else:
        context = ssl.create_default_context(cafile=trusted)
    if address.certfile is not None:
        # Without a callback OpenSSL would ask the terminal.
        context.load_cert_chain(address.certfile, address.keyfile, password=lambda: "")
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def certificate_refused(error: BaseException) -> bool:
    """Whether TLS failed because one side does not accept the other's certificate."""
    return isinstance(error, ssl.SSLError) and any(
        word in (error.reason or "") for word in _REFUSED
    )
