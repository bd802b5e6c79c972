"""Servers and clients for the tests with tritonclient, which nobody here wrote: `make tritonclient`."""

import pathlib
import sys

import pytest

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed: make tritonclient")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))  # the server's process, and attention in fp64


def start(folder, *flags):
    from attnd_process import Attnd

    return Attnd(folder, "--drain_delay_ms=0", *flags)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server as it comes; it must end with 0."""
    attnd = start(tmp_path_factory.mktemp("attnd"))
    yield attnd
    assert attnd.stop() == 0, attnd.log()


@pytest.fixture(scope="session")
def shm_server(tmp_path_factory):
    """One that takes shared memory by name."""
    attnd = start(tmp_path_factory.mktemp("attnd-shm"), "--allow_shm_names")
    yield attnd
    assert attnd.stop() == 0, attnd.log()


@pytest.fixture
def connect():
    """Makes clients; they are closed in the end."""
    import tritonclient.grpc

    made = []

    def make(address):
        made.append(tritonclient.grpc.InferenceServerClient(address))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(server, connect):
    return connect(server.address)
