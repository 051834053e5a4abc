"""A hospital's way out through a proxy: one decision for joining (HTTPS) and for studies (gRPC), read from the environment.

The proxy is asked to CONNECT and passes TLS through. ``https_proxy`` or ``HTTPS_PROXY`` names it, ``no_proxy`` the exceptions.
gRPC alone would read other names, in another order, and no capital letters; so it is told what was decided here.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from ssl import SSLContext
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from polyclinic.errors import ConfigError


@dataclass(frozen=True)
class Proxy:
    """Where the proxy is, and who asks it.

    >>> Proxy("proxy.hospital.example", 3128, "jo:secret").headers
    {'Proxy-Authorization': 'Basic am86c2VjcmV0'}
    """

    host: str
    port: int
    user: str = ""  # name:password, as in the address; gRPC takes it from there

    @property
    def headers(self) -> dict[str, str]:
        """What CONNECT says beside the address."""
        if not self.user:
            return {}
        return {"Proxy-Authorization": "Basic " + base64.b64encode(unquote(self.user).encode()).decode()}

    @property
    def url(self) -> str:
        """The address as gRPC wants it."""
        return f"http://{self.user}@{self.host}:{self.port}" if self.user else f"http://{self.host}:{self.port}"


def proxy_for(host: str) -> Proxy | None:
    """The proxy on the way to a host; None: straight."""
    said = "" if proxy_bypass(host) else getproxies().get("https", "")
    if not said:
        return None
    parts = urlsplit(said if "//" in said else f"//{said}")
    try:
        port = parts.port or 3128
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.scheme not in ("", "http"):
        raise ConfigError(
            f"https_proxy = {parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()!r}: not a proxy's address",
            hint="http://HOST:PORT, also for TLS: the proxy is asked to CONNECT",
        )
    return Proxy(parts.hostname, port, parts.netloc.rpartition("@")[0])


def connection(host: str, port: int, timeout: float, tls: SSLContext | None = None) -> HTTPConnection:
    """A connection that is not open yet, with TLS where a context is given, through the proxy where there is one."""
    proxy = proxy_for(host)
    place = (host, port) if proxy is None else (proxy.host, proxy.port)
    line = (
        HTTPConnection(*place, timeout=timeout)
        if tls is None
        else HTTPSConnection(*place, timeout=timeout, context=tls)
    )
    if proxy is not None:
        line.set_tunnel(host, port, proxy.headers)
    return line


def grpc_environment(host: str) -> Mapping[str, str]:
    """What makes gRPC go the same way to the coordinator as joining did."""
    proxy = proxy_for(host)
    if proxy is None:
        return {"no_grpc_proxy": host}
    return {"grpc_proxy": proxy.url, "no_grpc_proxy": "localhost,127.0.0.1"}
