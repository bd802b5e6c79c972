"""Tensors in POSIX shared memory, registered by name with tritonclient."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from reference import attention

from calls import DATATYPES, MODEL, check, check_o, expect_error, inputs, qkv, tensor


class Region:
    """An object of its own, of the server's prefix, registered in one piece; `close` leaves nothing behind."""

    made = 0

    def __init__(self, client, name, size_bytes, prefix="attnd-"):
        Region.made += 1
        self.client, self.name, self.size_bytes = client, name, size_bytes
        self.key = f"/{prefix}test-{os.getpid()}-{Region.made}"
        self.handle = shm.create_shared_memory_region(name, self.key, size_bytes, create_only=True)

    def register(self):
        self.client.register_system_shared_memory(self.name, self.key, self.size_bytes)
        return self

    def path(self):
        return f"/dev/shm{self.key}"

    def close(self):
        self.client.unregister_system_shared_memory(self.name)
        shm.destroy_shared_memory_region(self.handle)


@pytest.fixture
def shm_client(shm_server, connect):
    return connect(shm_server.address)


@pytest.fixture
def new_region(shm_client):
    regions = []

    def make(name, size_bytes, **options):
        regions.append(Region(options.pop("client", shm_client), name, size_bytes, **options))
        return regions[-1]

    yield make
    for region in regions:
        region.close()


def put(region, **arrays):
    """One after the other; inputs that lie there."""
    made, offset = [], 0
    for name, array in arrays.items():
        shm.set_shared_memory_region(region.handle, [array], offset)
        made.append(
            triton.InferInput(name, list(array.shape), DATATYPES[array.dtype]).set_shared_memory(
                region.name, array.nbytes, offset
            )
        )
        offset += array.nbytes
    return made


def place(region, name, size_bytes, offset=0):
    made = triton.InferRequestedOutput(name)
    made.set_shared_memory(region.name, size_bytes, offset)
    return made


def names(client):
    return set(client.get_system_shared_memory_status().regions)


def test_inputs_and_outputs_in_shared_memory(shm_client, new_region):
    q, k, v = qkv(np.float16, q_len=300, kv_len=500)
    lse_bytes = q.size // q.shape[3] * 4
    region_in = new_region("in", q.nbytes + k.nbytes + v.nbytes).register()
    region_out = new_region("out", q.nbytes + lse_bytes).register()
    status = shm_client.get_system_shared_memory_status().regions
    assert set(status) == {"in", "out"}
    assert status["in"].key == region_in.key and status["in"].byte_size == region_in.size_bytes
    result = shm_client.infer(
        MODEL,
        put(region_in, Q=q, K=k, V=v),
        outputs=[place(region_out, "O", q.nbytes), place(region_out, "LSE", lse_bytes, q.nbytes)],
        parameters={"causal": True},
    )
    response = result.get_response()
    # One for each output still, as Triton has it: its C++ client looks there without asking.
    assert list(response.raw_output_contents) == [b"", b""]
    for output in response.outputs:
        assert output.parameters["shared_memory_region"].string_param == "out"
    assert response.outputs[0].parameters["shared_memory_byte_size"].int64_param == q.nbytes
    want_o, want_lse = attention(q, k, v, causal="bottom-right")
    check_o(shm.get_contents_as_numpy(region_out.handle, q.dtype, q.shape), q, want_o)
    lse = shm.get_contents_as_numpy(region_out.handle, np.float32, q.shape[:3], q.nbytes)
    assert np.allclose(lse, want_lse, rtol=1e-5, atol=1e-5)


def test_some_tensors_here_and_some_there(shm_client, new_region):
    """raw_input_contents count those alone that are not in shared memory."""
    q, k, v = qkv()
    region = new_region("k", k.nbytes).register()
    [in_k] = put(region, K=k)
    o = new_region("o", q.nbytes + 64).register()
    result = shm_client.infer(MODEL, [tensor("Q", q), in_k, tensor("V", v)])
    check(result, q, k, v)
    result = shm_client.infer(
        MODEL, [in_k, tensor("V", v), tensor("Q", q)], outputs=[triton.InferRequestedOutput("LSE"), place(o, "O", q.nbytes, 64)]
    )
    assert [len(raw) for raw in result.get_response().raw_output_contents] == [0, q.size // q.shape[3] * 4]
    want_o, want_lse = attention(q, k, v)
    check_o(shm.get_contents_as_numpy(o.handle, q.dtype, q.shape, 64), q, want_o)
    assert np.allclose(result.as_numpy("LSE"), want_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.disk_usage("/dev/shm").free < 1 << 30, reason="needs a gigabyte in /dev/shm")
def test_larger_than_a_message_may_be(shm_server, shm_client, new_region):
    """300 MB of Q: no message carries it."""
    q = np.ones((1, 8, 150_000, 64), np.float32)
    k, v = (np.ones((1, 8, 1, 64), np.float32) * x for x in (1, 3))
    region = new_region("big", q.nbytes + k.nbytes + v.nbytes).register()
    out = new_region("big-out", q.nbytes).register()
    shm_client.infer(MODEL, put(region, Q=q, K=k, V=v), outputs=[place(out, "O", q.nbytes)])
    o = shm.get_contents_as_numpy(out.handle, q.dtype, q.shape)
    assert (o == 3).all()


def test_a_stream_takes_shared_memory(shm_client, new_region):
    import queue

    problems = [qkv(seed=seed) for seed in range(6)]
    answers = queue.Queue()
    shm_client.start_stream(lambda result, error: answers.put((result, error)))
    for i, (q, k, v) in enumerate(problems):
        region = new_region(f"s{i}", q.nbytes + k.nbytes + v.nbytes).register()
        shm_client.async_stream_infer(MODEL, put(region, Q=q, K=k, V=v), request_id=str(i))
    for i, problem in enumerate(problems):
        result, error = answers.get(timeout=120)
        assert error is None and result.get_response().id == str(i)
        check(result, *problem)
    shm_client.stop_stream()


def test_what_is_wrong_with_a_region_is_named(shm_client, new_region):
    q, k, v = qkv()
    region = new_region("r", q.nbytes).register()
    in_k, in_v = tensor("K", k), tensor("V", v)

    def in_q(region_name="r", size_bytes=q.nbytes, offset=0):
        return triton.InferInput("Q", list(q.shape), "FP32").set_shared_memory(region_name, size_bytes, offset)

    for bad, code, words in [
        (in_q("nobodys"), "NOT_FOUND", ["Q", "nobodys"]),
        (in_q(size_bytes=q.nbytes - 4), "INVALID_ARGUMENT", ["Q", str(q.nbytes - 4), str(q.nbytes)]),
        (in_q(offset=4), "INVALID_ARGUMENT", ["Q", "4", str(q.nbytes)]),
        (in_q(offset=2**62), "INVALID_ARGUMENT", ["Q", str(2**62)]),
    ]:
        with expect_error(code, *words):
            shm_client.infer(MODEL, [bad, in_k, in_v])
    for bad, words in [
        (place(region, "O", q.nbytes - 4), ["O", str(q.nbytes - 4), str(q.nbytes)]),
        (place(region, "O", q.nbytes, 8), ["O", "8"]),
    ]:
        with expect_error("INVALID_ARGUMENT", *words):
            shm_client.infer(MODEL, [tensor("Q", q), in_k, in_v], outputs=[bad])
    check(shm_client.infer(MODEL, [*put(region, Q=q), in_k, in_v]), q, k, v)


def test_what_cannot_be_registered_is_named(shm_client, new_region):
    region = new_region("x", 4096)
    other = new_region("y", 4096, prefix="somebodys-")

    def register(name="x", key=region.key, size_bytes=4096, offset=0):
        shm_client.register_system_shared_memory(name, key, size_bytes, offset)

    for bad, code, words in [
        (dict(key="/attnd-test-none"), "NOT_FOUND", ["attnd-test-none"]),
        (dict(key=other.key), "INVALID_ARGUMENT", ["somebodys", "attnd-"]),
        (dict(key="/attnd-../../etc/passwd"), "INVALID_ARGUMENT", ["slash"]),
        (dict(size_bytes=4097), "INVALID_ARGUMENT", ["4097", "4096"]),
        (dict(offset=2**64 - 1), "INVALID_ARGUMENT", [str(2**64 - 1)]),
        (dict(size_bytes=0), "INVALID_ARGUMENT", ["byte_size"]),
    ]:
        with expect_error(code, *words):
            register(**bad)
    region.register()
    with expect_error("ALREADY_EXISTS", "x"):
        region.register()
    assert names(shm_client) == {"x"}


def test_a_region_that_shrinks_fails_that_call_alone(shm_client, new_region):
    q, k, v = qkv()
    region = new_region("shrinks", q.nbytes).register()
    in_q = put(region, Q=q)
    os.truncate(region.path(), 4096)
    with expect_error("DATA_LOSS", "Q", "4096"):
        shm_client.infer(MODEL, [*in_q, tensor("K", k), tensor("V", v)])
    out = new_region("out-shrinks", q.nbytes).register()
    os.truncate(out.path(), 4096)
    with expect_error("DATA_LOSS", "O", "4096"):
        shm_client.infer(MODEL, inputs(q, k, v), outputs=[place(out, "O", q.nbytes)])
    os.truncate(region.path(), q.nbytes)
    check(shm_client.infer(MODEL, [*put(region, Q=q), tensor("K", k), tensor("V", v)]), q, k, v)


OTHER_PROCESS = """
import sys
import tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
client.unregister_system_shared_memory()
print(sorted(client.get_system_shared_memory_status().regions))
"""


def test_another_process_cannot_unregister_all(shm_server, shm_client, new_region):
    """As Triton's own examples begin."""
    q, k, v = qkv()
    region = new_region("mine", q.nbytes).register()
    in_q = put(region, Q=q)
    run = [sys.executable, "-c", OTHER_PROCESS, shm_server.address]
    seen = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout
    assert seen.strip() == "['mine']"
    check(shm_client.infer(MODEL, [*in_q, tensor("K", k), tensor("V", v)]), q, k, v)
    shm_client.unregister_system_shared_memory()
    assert names(shm_client) == set()
    with expect_error("NOT_FOUND", "mine"):
        shm_client.infer(MODEL, [*in_q, tensor("K", k), tensor("V", v)])


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_another_users_process_sees_nothing(shm_server, new_region):
    new_region("mine", 4096).register()
    be_another = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    run = [*be_another, sys.executable, "-c", OTHER_PROCESS, shm_server.address]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    seen = subprocess.run(run, capture_output=True, text=True, timeout=120, env=environment)
    if "Permission denied" in seen.stderr:
        pytest.skip("another user cannot read this Python")
    assert seen.stdout.strip() == "[]", seen.stderr


def test_without_the_flag_nothing_is_taken(client):
    for call in (
        lambda: client.register_system_shared_memory("x", "/attnd-x", 8),
        lambda: client.infer(MODEL, [triton.InferInput("Q", [1, 1, 1, 1], "FP32").set_shared_memory("x", 4)]),
    ):
        with expect_error("UNIMPLEMENTED", "allow_shm_names"):
            call()
    # What clients ask and clean up by habit is no error.
    assert names(client) == set()
    client.unregister_system_shared_memory()


def test_cuda_shared_memory_is_not_there(client):
    assert len(client.get_cuda_shared_memory_status().regions) == 0
    client.unregister_cuda_shared_memory()
    with expect_error("UNIMPLEMENTED", "local_socket"):
        client.register_cuda_shared_memory("x", b"\\x00" * 64, 0, 4096)
