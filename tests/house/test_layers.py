"""Include directions, as the design has them: one table, checked for every source file of the tree."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# folder -> what it may include besides itself and the standard and system libraries. The longest matching folder counts.
# "kernels core" is the headers directly in kernels/; a backend's own folder is seen by the registry alone.
ALLOWED = {
    "kernels": {"kernels"},
    "kernels/cpu": {"kernels"},
    "kernels/cpu/amx": {"kernels", "kernels/cpu"},
    "kernels/cuda": {"kernels"},
    "kernels/cuda/generic": {"kernels", "kernels/cuda"},
    "kernels/cuda/sm90a": {"kernels", "kernels/cuda"},
    "kernels/reference": {"kernels"},
    "server": {"kernels", "server", "server/memory", "server/regions"},
    "server/memory": {"server", "server/memory", "kernels"},
    "server/regions": {"server", "server/regions", "server/regions/protocol", "kernels"},
    "server/regions/protocol": {"server/regions/protocol"},
    "server/metrics": {"server", "server/memory", "server/metrics", "kernels"},
    "server/scheduler": {"server", "server/memory", "server/metrics", "kernels"},
    "server/executor": {"server", "server/memory", "server/metrics", "server/regions", "server/scheduler", "kernels"},
    "server/wire": {"server", "server/memory", "server/regions", "kernels", "attnd/v1", "inference"},
    "server/services": {
        "server", "server/memory", "server/metrics", "server/regions", "server/regions/protocol", "server/scheduler",
        "server/executor", "server/wire", "kernels", "attnd/v1", "inference",
    },
    "client": {"client", "server/regions/protocol", "attnd/v1"},
    "client/tools": {"client", "kernels", "kernels/reference"},
    "client/tools/load": {"client", "client/tools", "kernels"},
}
# Files that join the layers, and may therefore see more.
JOINTS = {
    "kernels/registry.cc": {"kernels", "kernels/cpu", "kernels/reference", "kernels/cuda/generic", "kernels/cuda/sm90a"},
    # The same errors of CUDA for kernels and server.
    "server/executor/cuda_ipc_runtime.cc": {"server", "server/executor", "kernels", "kernels/cuda"},
    "server/executor/cuda_runtime.cc": {"server", "server/executor", "kernels", "kernels/cuda"},
    "server/main.cc": None,
    "server/options.h": None,
    "server/region_host.cc": None,
    "server/region_host.h": None,
    "server/server.cc": None,
    "server/server.h": None,
    "server/server_info.cc": None,
    "server/server_info.h": None,
    "server/warm_up.h": None,
    "server/warm_up.cc": None,
}
# Beneath every layer.
EVERYONES = {"kernels/copy.h", "kernels/sync.h"}
# What kernels and the client library must never know.
FORBIDDEN_SYSTEM = {
    "kernels": re.compile(r"grpc|google/protobuf|spdlog|prometheus|httplib"),
    "server/memory": re.compile(r"grpc|google/protobuf"),
    "server/regions": re.compile(r"grpc|google/protobuf"),
    "server/scheduler": re.compile(r"grpc|google/protobuf"),
    "server/executor": re.compile(r"grpc|google/protobuf"),
    "server/metrics": re.compile(r"grpc|google/protobuf"),
    "server/wire": re.compile(r"grpc"),
    "client": re.compile(r"spdlog|prometheus|httplib"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)


def sources():
    for folder in ("kernels", "server", "client"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
                yield path.relative_to(ROOT).as_posix()


def layer_of(path, table):
    folder = path.rsplit("/", 1)[0]
    while folder and folder not in table:
        folder = folder.rpartition("/")[0]
    return folder


def own_folder(include):
    """The folder of an include of the project's own, or None."""
    top = include.split("/", 1)[0]
    if top in {"kernels", "server", "client", "tests"} or include.startswith(("attnd/v1/", "inference/")):
        return include.rsplit("/", 1)[0]
    return None


def violations(path, text):
    found = []
    layer = layer_of(path, ALLOWED)
    allowed = JOINTS.get(path, ALLOWED[layer])
    for match in INCLUDE.finditer(text):
        include = match.group(1) or match.group(2)
        folder = own_folder(include)
        if include in EVERYONES:
            continue
        if folder is None:
            forbidden_layer = layer_of(path, FORBIDDEN_SYSTEM)
            pattern = FORBIDDEN_SYSTEM.get(forbidden_layer)
            if pattern and path not in JOINTS and pattern.search(include):
                found.append(f"{path} includes {include}, which {forbidden_layer}/ must not know")
        elif allowed is not None and folder not in allowed and folder != path.rsplit("/", 1)[0]:
            found.append(f"{path} includes {include}; {layer}/ may include {sorted(allowed)}")
    return found


@pytest.mark.parametrize("path", list(sources()))
def test_include_direction(path):
    assert violations(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "path, include",
    [
        ("kernels/attention.cc", "server/request.h"),
        ("kernels/cpu/flash.cc", "kernels/reference/reference.h"),
        ("kernels/reference/reference.cc", "kernels/cpu/flash.h"),
        ("kernels/attention.cc", "grpcpp/grpcpp.h"),
        ("server/memory/buffer_pool.cc", "server/scheduler/scheduler.h"),
        ("server/regions/region.cc", "attnd/v1/attnd.pb.h"),
        ("server/regions/protocol/packet.cc", "server/listen_address.h"),
        ("server/scheduler/scheduler.cc", "attnd/v1/attnd.pb.h"),
        ("server/regions/region.cc", "inference/grpc_service.pb.h"),
        ("server/wire/scan.cc", "grpcpp/support/byte_buffer.h"),
        ("client/client.cc", "kernels/attention.h"),
        ("client/region.cc", "server/regions/region.h"),
        ("client/tools/attnctl.cc", "server/request.h"),
    ],
)
def test_the_check_finds_a_planted_violation(path, include):
    assert violations(path, f'#include "{include}"\n')
