"""Makes attnd/v1/attnd_pb2.py from attnd.proto while the package is built: with grpcio-tools, or with a protoc.

$ATTND_CLIENT_LIBRARY names libattnd_client_c.so, which the package then carries along.

What protoc itself writes for Python works with its own version of protobuf and newer ones alone. So only the description
of the messages is taken from it, which every version reads, and the four lines that make classes of it are here.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

LIBRARY = os.environ.get("ATTND_CLIENT_LIBRARY", "")
HERE = pathlib.Path(__file__).resolve().parent
NAME = "attnd/v1/attnd.proto"
# In the project's tree, and in a source distribution, which takes the file along.
PROTO_FOLDERS = [HERE.parent.parent / "proto", HERE / "proto"]

MODULE = '''"""Messages of attnd.v1. Written while the package was built; see setup.py."""
from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
    {description!r}
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "attnd.v1.attnd_pb2", globals())
'''


def proto_folder():
    for folder in PROTO_FOLDERS:
        if (folder / NAME).is_file():
            return folder
    raise FileNotFoundError(f"{NAME} is in none of {', '.join(map(str, PROTO_FOLDERS))}")


def protoc():
    if importlib.util.find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"]
    if shutil.which("protoc"):
        return ["protoc"]
    raise FileNotFoundError("no protoc: install grpcio-tools (PyPI) or protobuf-compiler (Debian)")


def generate(root):
    """Writes root/attnd/v1/attnd_pb2.py and .pyi; the paths."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*protoc(), f"--proto_path={proto_folder()}", f"--pyi_out={folder}"]
        subprocess.run([*command, f"--descriptor_set_out={folder}/set", NAME], check=True)
        from google.protobuf import descriptor_pb2

        files = descriptor_pb2.FileDescriptorSet.FromString((pathlib.Path(folder) / "set").read_bytes())
        target = pathlib.Path(root) / "attnd/v1/attnd_pb2.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(MODULE.format(description=files.file[0].SerializeToString()))
        stub = target.with_suffix(".pyi")
        shutil.copy(pathlib.Path(folder) / "attnd/v1/attnd_pb2.pyi", stub)
    return [str(target), str(stub)]


def copy_library(root):
    """The path of the package's own copy, in a list."""
    if not LIBRARY:
        return []
    target = pathlib.Path(root) / "attnd/libattnd_client_c.so"
    shutil.copy(LIBRARY, target)
    return [str(target)]


class WithLibrary(Distribution):
    """A package with the library is one machine's."""

    def has_ext_modules(self):
        return bool(LIBRARY)


class BuildPy(build_py):
    def run(self):
        super().run()
        root = HERE if getattr(self, "editable_mode", False) else self.build_lib
        self.generated = generate(root) + copy_library(root)

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + getattr(self, "generated", [])


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        target = pathlib.Path(base_dir) / "proto" / NAME
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(proto_folder() / NAME, target)


setup(distclass=WithLibrary, cmdclass={"build_py": BuildPy, "sdist": Sdist})
