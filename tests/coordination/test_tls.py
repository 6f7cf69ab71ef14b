"""The way to ZooKeeper by TLS, against a real server whose port wants it, and a certificate of its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from boki.config.loading import ZooKeeperAccess
from boki.coordination.zookeeper import ZooKeeperCoordinator
from boki.errors import ConfigError, Unavailable
from boki.launch.zookeeper.parts import Parts, find_parts
from boki.launch.zookeeper.server import Ports, ZooKeeperServer, free_ports
from boki.log.membership import ClusterPlan
from tests.controller.coordinators import run

pytestmark = pytest.mark.xdist_group("one ZooKeeper with TLS")


def make_certificate(folder: Path, name: str, host: str) -> None:
    """A certificate for that host by an authority of its own, and its key, in the form that ZooKeeper reads."""
    authority = trustme.CA()
    issued = authority.issue_cert(host, common_name=name, key_type=trustme.KeyType.RSA)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    (folder / f"{name}-key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / f"{name}.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(folder / f"{name}-ca.pem")


class SecureServer(ZooKeeperServer):
    """A ZooKeeper with a port for TLS, to which `folder/server.pem` belongs, and which wants `node.pem` of clients."""

    def __init__(self, folder: Path, port: int) -> None:
        parts = find_parts()
        jars = tuple(path for path in parts.jars[0].parent.glob("netty-*.jar"))
        assert jars, "ZooKeeper speaks TLS by netty, which comes with PySpark"
        super().__init__(Parts(parts.java, (*parts.jars, *jars)), folder / "zookeeper", [Ports(free_ports(1)[0])])
        self._secure = (folder, port)

    def prepare(self) -> list[str]:
        command = super().prepare()
        folder, port = self._secure
        (folder / "store.pem").write_text((folder / "server-key.pem").read_text() + (folder / "server.pem").read_text())
        with (self.directory / "zoo.cfg").open("a") as config:
            config.write(
                f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n"
                f"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={folder / 'store.pem'}\nssl.trustStore.location={folder / 'node-ca.pem'}\n"
            )
        return command


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the folder of the certificates."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "server", "localhost")
    make_certificate(folder, "node", "node")
    make_certificate(folder, "other", "localhost")
    (port,) = free_ports(1)
    server = SecureServer(folder, port)
    server.start()
    try:
        server.wait_ready()
        yield f"localhost:{port}", folder
    finally:
        server.stop()


def access(folder: Path, ca: str = "server-ca.pem", name: str = "node", *, check_host: bool = True) -> ZooKeeperAccess:
    return ZooKeeperAccess(
        digest="boki:secret",
        tls=True,
        ca=str(folder / ca),
        certificate=str(folder / f"{name}.pem"),
        key=str(folder / f"{name}-key.pem"),
        check_host=check_host,
    )


def test_a_cluster_meets_over_tls(secure: tuple[str, Path]) -> None:
    """With a certificate on both sides, and the digest besides."""
    hosts, folder = secure

    async def body() -> None:
        coordinator = await ZooKeeperCoordinator.connect(hosts, "/tls", access=access(folder))
        assert (await coordinator.ensure_plan(ClusterPlan(logs=3))).logs == 3
        await coordinator.close()

    run(body())


REASONS = {
    "ca": r": the certificate of localhost:\d+ is refused \(unable to get .*\): set zookeeper_access\.ca to",
    "host": r": the certificate of 127.0.0.1:\d+ is refused \(IP address mismatch, .*\): name it in zookeeper as its ",
    "certificate": r": localhost:\d+ ends the connection \(\w*ALERT\w*\): does it know zookeeper_access\.certificate",
    "plain": "; start it, or name its servers",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo drops sockets, unclosed
@pytest.mark.parametrize("case", REASONS)
def test_what_tls_refuses_is_not_connected_to_and_the_reason_is_told(secure: tuple[str, Path], case: str) -> None:
    """Another authority's certificate, one of another host, one that the server does not know, no TLS."""
    hosts, folder = secure
    by_number = hosts.replace("localhost", "127.0.0.1")
    hosts, how = {
        "ca": (hosts, access(folder, ca="other-ca.pem")),
        "host": (by_number, access(folder)),
        "certificate": (hosts, access(folder, name="other")),
        "plain": (hosts, ZooKeeperAccess()),
    }[case]

    async def body() -> None:
        with pytest.raises(Unavailable, match=f"^no ZooKeeper answers at {hosts} within 1 s{REASONS[case]}"):
            await ZooKeeperCoordinator.connect(hosts, "/tls", access=how, timeout_s=1)

    run(body())


def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    """At once: kazoo would try again forever."""
    (tmp_path / "empty.pem").touch()

    async def body() -> None:
        for name, why in (("missing.pem", "No such file"), ("empty.pem", "")):
            how = ZooKeeperAccess(tls=True, ca=str(tmp_path / name))
            with pytest.raises(ConfigError, match=rf"zookeeper_access\.ca.*{name}\) cannot be used: .*{why}"):
                await ZooKeeperCoordinator.connect("localhost:1", "/tls", access=how)

    run(body())


def test_the_host_need_not_be_named(secure: tuple[str, Path]) -> None:
    """Where addresses are numbers that no certificate has."""
    hosts, folder = secure

    async def body() -> None:
        how = access(folder, check_host=False)
        coordinator = await ZooKeeperCoordinator.connect(hosts.replace("localhost", "127.0.0.1"), "/tls", access=how)
        await coordinator.close()

    run(body())
