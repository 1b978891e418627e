"""Certificates that servers are shown, where a secret of the sandbox is one (G-134).

A TLS context for each, since connections are told apart by it: one that was made by a certificate is used for no request that
does not have it any more.
"""

import os
import ssl
from collections.abc import Sequence

from corral.gateway.inject import Bound

_MOST = 64


class ClientCertificates:
    """One box's. `tls` says what servers are checked by; `alpn` what is spoken."""

    def __init__(self, tls: ssl.SSLContext, alpn: Sequence[str] = ()) -> None:
        self._tls = tls
        self._alpn = alpn
        self._made: dict[str, ssl.SSLContext] = {}

    def context(self, bound: Sequence[Bound]) -> ssl.SSLContext:
        """What a connection to a host is made by to which these secrets go."""
        pem = next((one.certificate for one in bound if one.certificate is not None), None)
        if pem is None:
            return self._tls
        text = pem.reveal()
        if text not in self._made:
            while len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            self._made[text] = self._with(text)
        return self._made[text]

    def _with(self, pem: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = max(self._tls.minimum_version, ssl.TLSVersion.TLSv1_2)
        # The files that these came from cannot be read any more.
        context.verify_flags = self._tls.verify_flags
        context.load_verify_locations(cadata=b"".join(self._tls.get_ca_certs(binary_form=True)))
        if self._alpn:
            context.set_alpn_protocols(list(self._alpn))
        load_chain(context, pem.encode())
        return context


def load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Use a certificate, its issuers and its key. OpenSSL takes files only; this one is memory."""
    fd = os.memfd_create("chain", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def shown(bound: Sequence[Bound]) -> frozenset[str]:
    """The name of the secret whose certificate a server is shown; none where it is shown none."""
    return frozenset([one.name for one in bound if one.certificate is not None][:1])
