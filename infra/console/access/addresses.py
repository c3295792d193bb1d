"""Names and addresses: by which name a browser may reach us, which proxy is believed, and who else may connect."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


def has_loopback(networks: Sequence[Network]) -> bool:
    """Return whether programs of this machine can send from an address of these networks.

    >>> has_loopback(parse_networks(["127.0.0.1"])), has_loopback(parse_networks(["10.0.0.0/8"]))
    (True, False)
    """
    own = parse_networks(["127.0.0.0/8", "::1"])
    return any(one.version == other.version and one.overlaps(other) for one in networks for other in own)


def sender_of(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """Return the address from which a request came to the outermost proxy that is believed.

    Parameters
    ----------
    peer
        Address at the other end of our connection, which is that of a believed proxy.
    forwarded
        Its ``X-Forwarded-For`` headers. Each proxy writes behind what it was sent: what stands left of the first
        address that is no believed proxy's, seen from the right, anybody may have written.

    Examples
    --------
    >>> proxies = parse_networks(["10.0.0.0/8"])
    >>> sender_of("10.0.0.7", ["192.0.2.66, 198.51.100.1", "10.0.0.8"], proxies)
    '198.51.100.1'
    >>> sender_of("10.0.0.7", ["198.51.100.1, nonsense"], proxies), sender_of("10.0.0.7", [], proxies)
    ('10.0.0.7', '10.0.0.7')
    """
    found = peer
    for text in reversed(",".join(forwarded).split(",")):
        address = _parsed(_without_port(text.strip()))
        if address is None or not is_in(found, proxies):
            break
        found = str(address)
    return found


def neighbourhood_of(address: str) -> str:
    """Return the addresses that one visitor may have: of IPv6, where anybody owns 2^64, the network of 64 bits.

    >>> neighbourhood_of("192.0.2.1"), neighbourhood_of("2001:db8::1234:1"), neighbourhood_of("::ffff:192.0.2.1")
    ('192.0.2.1', '2001:db8::/64', '192.0.2.1')
    """
    found = _parsed(address)
    if found is None:
        return ""
    return str(found) if found.version == 4 else str(ip_network((found, 64), strict=False))


def _without_port(text: str) -> str:
    """Take away the port and the brackets that some proxies write: ``192.0.2.1:443``, ``[2001:db8::1]:443``."""
    return host_of(text) if text.startswith("[") or text.count(":") == 1 else text


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_address(text: str) -> bool:
    return _parsed(text) is not None
