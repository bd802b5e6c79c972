"""What is installed, and how it is built."""

import inspect
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
from google.protobuf import descriptor_pb2

import attnd
from attnd.v1 import attnd_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client/python"


def test_the_version_is_the_projects():
    project = re.search(r"project\(attnd VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    packaged = re.search(r'^version = "(.*)"', (PACKAGE / "pyproject.toml").read_text(), re.M)[1]
    assert attnd.__version__ == packaged == project


def test_types_are_installed():
    folder = pathlib.Path(attnd.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "v1/attnd_pb2.pyi").exists()


def test_the_messages_are_those_of_the_proto(tmp_path):
    """Whichever generator made them."""
    command = ["protoc", f"--proto_path={ROOT / 'proto'}", f"--descriptor_set_out={tmp_path}/set"]
    subprocess.run([*command, "attnd/v1/attnd.proto"], check=True)
    want = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file[0]
    got = descriptor_pb2.FileDescriptorProto()
    attnd_pb2.DESCRIPTOR.CopyToProto(got)
    assert got == want


@pytest.mark.parametrize("client", [attnd.Client, attnd.AsyncClient])
def test_both_clients_take_what_a_problem_takes(client):
    """By the same names, with the same defaults, in every place."""
    want = inspect.signature(attnd.Problem).parameters
    got = inspect.signature(client.attention).parameters
    assert set(got) - {"self"} == set(want)
    for name, parameter in want.items():
        assert got[name].default == parameter.default
    assert all(f"{name}" in attnd.Problem.__doc__ for name in want)


def test_both_clients_are_made_alike():
    assert inspect.signature(attnd.Client) == inspect.signature(attnd.AsyncClient)
    public = {name for name in vars(attnd.Client) if not name.startswith("_")}
    assert public - {"submit"} == {name for name in vars(attnd.AsyncClient) if not name.startswith("_")}


def test_a_source_distribution_builds_without_the_tree(tmp_path):
    """It takes attnd.proto along."""

    def setup(folder, *words):
        subprocess.run([sys.executable, "-W", "ignore", "setup.py", "--quiet", *words], cwd=folder, check=True)

    setup(PACKAGE, "egg_info", f"--egg-base={tmp_path}", "sdist", "--formats=zip", f"--dist-dir={tmp_path}")
    (archive,) = tmp_path.glob("*.zip")
    zipfile.ZipFile(archive).extractall(tmp_path)
    setup(tmp_path / archive.stem, "build", f"--build-base={tmp_path}/base", f"--build-lib={tmp_path}/lib")
    built = {path.relative_to(tmp_path / "lib").as_posix() for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    installed = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("attnd/**/*.py")}
    assert built >= installed | {"attnd/py.typed", "attnd/v1/attnd_pb2.py", "attnd/v1/attnd_pb2.pyi"}


def test_a_package_carries_the_library_that_it_was_built_with(tmp_path, library_path):
    """And uses it, where nothing else is said."""
    environment = {**os.environ, "ATTND_CLIENT_LIBRARY": library_path}
    build = ["build", f"--build-base={tmp_path}/base", f"--build-lib={tmp_path}/lib"]
    subprocess.run([sys.executable, "-W", "ignore", "setup.py", "--quiet", *build], cwd=PACKAGE, env=environment, check=True)
    assert (tmp_path / "lib/attnd/libattnd_client_c.so").read_bytes() == pathlib.Path(library_path).read_bytes()
    del environment["ATTND_CLIENT_LIBRARY"]
    ask = "import attnd; print(attnd.__file__, attnd.Client('127.0.0.1:1').engine)"
    path = {"PYTHONPATH": f"{tmp_path}/lib"}
    done = subprocess.run([sys.executable, "-c", ask], env={**environment, **path}, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [f"{tmp_path}/lib/attnd/__init__.py", "native"]
