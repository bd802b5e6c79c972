"""The package, built from client/python where it is not installed, and servers for it."""

import asyncio
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))  # the server's process, and attention in fp64


def build_package():
    """As `pip install` would, with what this Python has: grpcio-tools or protoc."""
    folder = tempfile.mkdtemp(prefix="attnd-python-")
    build = ["setup.py", "--quiet", "build", f"--build-base={folder}/base", f"--build-lib={folder}/lib"]
    subprocess.run([sys.executable, "-W", "ignore", *build], cwd=ROOT / "client/python", check=True)
    sys.path.insert(0, f"{folder}/lib")
    return folder


def library():
    """The C++ client's, with which clients are tested too; "" where there is none."""
    if "ATTND_CLIENT_LIBRARY" in os.environ:
        return os.environ["ATTND_CLIENT_LIBRARY"]
    from attnd_process import BUILD_DIR

    built = BUILD_DIR / "lib/libattnd_client_c.so"
    return str(built) if built.exists() else ""


LIBRARY = library()
BUILT = None if importlib.util.find_spec("attnd") else build_package()


def pytest_unconfigure():
    if BUILT is not None:
        shutil.rmtree(BUILT, ignore_errors=True)


class OnLoop:
    """An AsyncClient, its coroutines run to their end one by one: what is true of Client can be asked of it too."""

    def __init__(self, *arguments, **options):
        import attnd

        self.loop = asyncio.new_event_loop()
        self.client = attnd.AsyncClient(*arguments, **options)

    def __getattr__(self, name):
        return lambda *arguments, **options: self.loop.run_until_complete(getattr(self.client, name)(*arguments, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.loop.close()


def use(engine, monkeypatch):
    """Clients made from now on are this engine's."""
    if engine == "native" and not LIBRARY:
        pytest.skip("libattnd_client_c.so has not been built")
    monkeypatch.setenv("ATTND_CLIENT_LIBRARY", LIBRARY if engine == "native" else "")


@pytest.fixture(params=["native", "grpcio"])
def engine(request, monkeypatch):
    """Of the test's clients for threads: the C++ client, or grpcio."""
    use(request.param, monkeypatch)
    return request.param


@pytest.fixture
def library_path():
    if not LIBRARY:
        pytest.skip("libattnd_client_c.so has not been built")
    return LIBRARY


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server, with a side socket; it must end with 0."""
    from attnd_process import Attnd

    folder = tmp_path_factory.mktemp("attnd")
    attnd_process = Attnd(folder, "--drain_delay_ms=0", f"--local_socket={folder}/side.sock")
    attnd_process.side_socket = f"{folder}/side.sock"
    yield attnd_process
    assert attnd_process.stop() == 0, attnd_process.log()


@pytest.fixture(params=["native", "grpcio", "asyncio"])
def connect(request, monkeypatch):
    """Makes clients of each kind; they are closed in the end."""
    import attnd

    use(request.param, monkeypatch)
    made = []

    def make(*arguments, **options):
        made.append((OnLoop if request.param == "asyncio" else attnd.Client)(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.__exit__()


@pytest.fixture
def client(server, connect):
    return connect(server.address, local_socket=server.side_socket)
