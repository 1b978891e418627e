"""What a sandbox reaches of its gateway."""

from enum import StrEnum


class ListenerKind(StrEnum):
    """What a listening socket in a sandbox's gateway namespace serves."""

    DNS_UDP = "dns-udp"
    DNS_TCP = "dns-tcp"
    HTTP = "http"
    TLS = "tls"
