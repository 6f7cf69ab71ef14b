"""Why no connection to ZooKeeper comes about by TLS: kazoo tries again and does not say."""

from __future__ import annotations

import socket
import ssl

from boki.config.loading import ZooKeeperAccess
from boki.errors import ConfigError

_HOST_MISMATCHES = {62, 63, 64}
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_ and _IP_ADDRESS_."""


def context_of(access: ZooKeeperAccess) -> ssl.SSLContext:
    """What connections are made with, as kazoo does. `ConfigError` if a file cannot be used."""
    context = ssl.create_default_context()
    context.check_hostname = access.check_host
    try:
        if access.ca:
            context.load_verify_locations(access.ca)
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key)
    except OSError as error:  # also of the ssl module
        files = ", ".join(filter(None, (access.ca, access.certificate, access.key)))
        raise ConfigError(
            f"zookeeper_access.ca, certificate or key ({files}) cannot be used: {error.strerror or error}",
            field="zookeeper_access",
        ) from None
    return context


def refusal_of(hosts: str, context: ssl.SSLContext, timeout_s: float) -> str:
    """Why the first host that answers is not connected to, and what to do; empty if TLS is not the reason."""
    for address in hosts.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout_s) as plain:
                return _tried(address, context, plain, host)
        except OSError:
            continue  # it does not answer at all
    return ""


def _tried(address: str, context: ssl.SSLContext, plain: socket.socket, host: str) -> str:
    try:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(b"srvr")  # a server refuses a client's certificate only after the handshake
            connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        remedy = "set zookeeper_access.ca to its authority's certificates"
        if error.verify_code in _HOST_MISMATCHES:
            remedy = "name it in zookeeper as its certificate does, or set zookeeper_access.check_host = false"
        return f"the certificate of {address} is refused ({error.verify_message.rstrip('.')}): {remedy}"
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        remedy = "does it know zookeeper_access.certificate?" if "ALERT" in reason else "is it the secure client port?"
        return f"{address} ends the connection ({reason}): {remedy}"
    except OSError:
        return ""  # it has gone away
    return ""
