"""Names and addresses: by which name a browser may reach us, which proxy is believed, and who else may connect."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from irregulars.errors import InputError

Network = IPv4Network | IPv6Network


def own_names() -> frozenset[str]:
    """Return the names that this machine has without anybody telling us."""
    return frozenset({"localhost", socket.gethostname().lower()})


def host_of(header: str) -> str:
    """Return the name or address of a ``Host`` header, without its port.

    >>> host_of("Console.Example:8321"), host_of("[::1]:8321"), host_of("127.0.0.1")
    ('console.example', '::1', '127.0.0.1')
    """
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Return whether a browser that sends this ``Host`` header may be answered.

    A page of another site can point its own name at our address (DNS rebinding) and then read our pages as its own.
    The browser still sends the other site's name here. Addresses are safe: no site has one as its name.

    >>> is_known_host("127.0.0.1:8321", ()), is_known_host("evil.example", {"localhost"}), is_known_host("", ())
    (True, False, False)
    """
    host = host_of(header)
    return host in names or _is_address(host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address that is listened on.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and networks of proxies.

    >>> parse_networks(["10.0.0.7", "fd00::/8"])
    (IPv4Network('10.0.0.7/32'), IPv6Network('fd00::/8'))

    Raises
    ------
    InputError
        If one is neither, or has bits behind its prefix, or is everybody.
    """
    try:
        networks = tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise InputError(f"console_proxies must be addresses or networks like 10.0.0.0/8; got {error}") from None
    everybody = [str(one) for one in networks if one.prefixlen == 0]
    if everybody:
        raise InputError(
            f"console_proxies must be networks that hold the proxies and few others; got {everybody[0]}, which is "
            "everybody: whoever sends the header could be anybody"
        )
    return networks


def is_in(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks; one of IPv4 may come in the form of IPv6.

    >>> is_in("::ffff:10.0.0.7", parse_networks(["10.0.0.0/8"])), is_in("testclient", ())
    (True, False)
    """
    if not _is_address(address):
        return False
    found = ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
