"""The service over the network: a caller without our client, malformed requests, load, drain, HTTP."""

import importlib
import json
import pathlib
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from attnd_process import BIN_DIR, BUILD_DIR, ROOT, Attnd, tool, tool_json, wait_until
from reference import BOUND, attention, rel_error

METHOD = "/attnd.v1.AttentionService/Compute"
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def pb(tmp_path_factory):
    """The messages, as protoc writes them for Python: what somebody else would start from."""
    folder = tmp_path_factory.mktemp("proto")
    subprocess.run(
        ["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}", "attnd/v1/attnd.proto"], check=True
    )
    sys.path.insert(0, str(folder))
    return importlib.import_module("attnd.v1.attnd_pb2")


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address, options=NO_LIMIT) as channel:
        yield channel


def request_for(pb, q, k, v, **options):
    request = pb.ComputeRequest(header=pb.ComputeHeader(**options), q=q.tobytes(), k=k.tobytes(), v=v.tobytes())
    dtype = {"float32": pb.DATA_TYPE_FLOAT32, "float16": pb.DATA_TYPE_FLOAT16}[q.dtype.name]
    for spec, array in ((request.header.q, q), (request.header.k, k), (request.header.v, v)):
        spec.dtype = dtype
        spec.shape.extend(array.shape)
    return request


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def compute(pb, channel):
    return channel.unary_unary(METHOD, pb.ComputeRequest.SerializeToString, pb.ComputeResponse.FromString)


def wake_ups(process):
    """Of all threads so far."""
    total = 0
    for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status"):
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches")]
        total += int(line.split()[1])
    return total


def check_good_call(pb, channel):
    q, k, v = normal(1, 1, 2, 5, 16), normal(2, 1, 1, 9, 16), normal(3, 1, 1, 9, 16)
    response = compute(pb, channel)(request_for(pb, q, k, v), timeout=60)
    o = np.frombuffer(response.o, np.float32).reshape(q.shape)
    assert rel_error(o, attention(q, k, v)[0]) <= BOUND["float32"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_foreign_language(pb, channel, dtype):
    q, k, v = (normal(i, *shape, dtype=dtype) for i, shape in enumerate([(2, 6, 31, 48), (2, 2, 77, 48), (2, 2, 77, 48)]))
    request = request_for(
        pb, q, k, v, causal=pb.CAUSAL_ALIGNMENT_BOTTOM_RIGHT, want_lse=True, window=pb.Window(left=50), request_id="from afar"
    )  # fmt: skip
    response, call = compute(pb, channel).with_call(request, timeout=60)
    header = response.header
    assert list(header.o.shape) == [2, 6, 31, 48] and list(header.lse.shape) == [2, 6, 31]
    assert header.request_id == "from afar" and header.batch_size >= 1 and header.kernel.startswith("attn_fwd_")
    assert "attnd-version" in dict(call.trailing_metadata())
    want_o, want_lse = attention(q, k, v, causal="bottom-right", window=(50, None))
    assert rel_error(np.frombuffer(response.o, dtype).reshape(q.shape), want_o) <= BOUND[dtype]
    assert rel_error(np.frombuffer(response.lse, np.float32).reshape(2, 6, 31), want_lse) <= 2e-6


def test_a_large_message_from_afar(pb, channel):
    """Case S46: 24 MB of Q, with no limit lifted at the server."""
    q, k, v = normal(1, 1, 16, 6144, 64), normal(2, 1, 16, 4, 64), normal(3, 1, 16, 4, 64)
    response = compute(pb, channel)(request_for(pb, q, k, v), timeout=100)
    o = np.frombuffer(response.o, np.float32).reshape(q.shape)
    assert rel_error(o, attention(q, k, v)[0]) <= BOUND["float32"]


def test_server_info_from_afar(pb, channel):
    info = channel.unary_unary(
        "/attnd.v1.AttentionService/GetServerInfo",
        pb.GetServerInfoRequest.SerializeToString,
        pb.GetServerInfoResponse.FromString,
    )(pb.GetServerInfoRequest(), timeout=60)
    assert info.limits.max_head_dim == 256 and info.limits.max_unary_bytes > 0


def test_malformed_requests(pb, server, channel, tmp_path):
    """Case S48 too: each gets its code and message, is counted as a failure, and harms nobody."""
    found = [path for path in BUILD_DIR.rglob("malformed_cases") if path.is_file()]
    assert found, "the program malformed_cases is not built"
    subprocess.run([found[0], "--out", tmp_path], check=True, capture_output=True)
    cases = json.loads((tmp_path / "manifest.json").read_text())
    assert len(cases) >= 200
    raw = channel.unary_unary(METHOD)  # bytes in, bytes out
    failures = []
    for case in cases:
        with pytest.raises(grpc.RpcError) as error:
            raw((tmp_path / case["file"]).read_bytes(), timeout=60)
        code, details = error.value.code().name, error.value.details()
        if code != case["code"] or not all(part in details for part in case["substrings"]):
            failures.append((case["name"], code, details, case["code"], case["substrings"]))
        if "attnd-version" not in dict(error.value.trailing_metadata()):
            failures.append((case["name"], "no trailer attnd-version"))
    assert not failures
    check_good_call(pb, channel)
    refused = server.metric("attnd_requests_finished_total") - server.metric('attnd_requests_finished_total{code="OK"')
    assert refused >= len(cases), server.http("/metrics")[1]


def test_deadline_and_cancel_from_afar(pb, channel):
    q = normal(1, 1, 8, 2048, 64)
    with pytest.raises(grpc.RpcError) as error:
        compute(pb, channel)(request_for(pb, q, q, q), timeout=0.001)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    call = compute(pb, channel).future(request_for(pb, q, q, q))
    call.cancel()
    assert call.code() == grpc.StatusCode.CANCELLED
    check_good_call(pb, channel)


def test_http(server):
    assert server.http("/livez")[0] == 200
    assert server.http("/readyz")[0] == 200
    assert server.http("/nothing")[0] == 404
    status, metrics = server.http("/metrics")
    assert status == 200 and "# TYPE attnd_requests_finished_total counter" in metrics


def test_s39_drain_under_load(pb, tmp_path):
    """Case S39: SIGTERM under load: not ready first and still serving, then UNAVAILABLE; what is in flight completes."""
    attnd = Attnd(tmp_path, "--drain_delay_ms=700", "--drain_timeout_ms=60000")
    q = normal(1, 1, 2, 64, 64)
    outcomes, refused, stop = [], [], threading.Event()

    def call_until_refused():
        with grpc.insecure_channel(attnd.address, options=NO_LIMIT) as channel:
            while not stop.is_set():
                try:
                    compute(pb, channel)(request_for(pb, q, q, q), timeout=60)
                    outcomes.append(time.monotonic())
                except grpc.RpcError as error:
                    refused.append(error.code())
                    return

    callers = [threading.Thread(target=call_until_refused) for _ in range(4)]
    for caller in callers:
        caller.start()
    terminated = float("inf")
    try:
        wait_until(lambda: len(outcomes) >= 8, "calls are answered")
        # One that runs longer than the delay, and must still complete.
        long_q = normal(2, 1, 4, 4096, 64)
        with grpc.insecure_channel(attnd.address, options=NO_LIMIT) as channel:
            long_call = compute(pb, channel).future(request_for(pb, long_q, long_q, long_q), timeout=100)
            wait_until(lambda: long_call.running(), "the long call is on its way")
            terminated = time.monotonic()
            attnd.terminate()
            wait_until(lambda: attnd.http("/readyz")[0] == 404, "/readyz says 404")
            assert attnd.http("/livez")[0] == 200
            o = np.frombuffer(long_call.result().o, np.float32)
            assert o.size == long_q.size and np.isfinite(o).all()
    finally:
        if terminated == float("inf"):
            attnd.terminate()
        exit_code = attnd.wait()
        stop.set()
        for caller in callers:
            caller.join()
    assert exit_code == 0, attnd.log()
    assert any(when > terminated + 0.3 for when in outcomes)  # it still served in the delay
    assert set(refused) <= {grpc.StatusCode.UNAVAILABLE}, refused


def test_unix_socket(tmp_path):
    address = f"unix:{tmp_path}/socket"
    attnd = Attnd(tmp_path, f"--listen={address}", "--drain_delay_ms=0")
    try:
        assert tool_json("attnctl", "health", "--server", address)["serving"]
        result = tool_json(
            "attnload", "--server", address, "--duration=300ms", "--warmup=1ms", "--q_len=700", "--kv_len=700", "--verify=1"
        )  # fmt: skip
        assert result["answered"] > 0 and result["failed"] == 0 and result["wrong"] == 0
    finally:
        exit_code = attnd.stop()
    assert exit_code == 0, attnd.log()


def test_tools_share_memory_with_a_server_on_their_host(tmp_path):
    side_socket = f"--local_socket={tmp_path}/side.sock"
    attnd = Attnd(tmp_path, side_socket, "--drain_delay_ms=0")
    try:
        for how, expected in (("region", "region"), ("unary", "unary"), ("auto", "region")):
            before = attnd.metric(f'attnd_received_bytes_total{{transport="{expected}"}}')
            result = tool_json(
                "attnload", "--server", attnd.address, side_socket, f"--transport={how}", "--duration=300ms", "--warmup=1ms",
                "--q_len=300", "--kv_len=300", "--verify=1",
            )  # fmt: skip
            assert result["answered"] > 0 and result["failed"] == 0 and result["wrong"] == 0, how
            assert attnd.metric(f'attnd_received_bytes_total{{transport="{expected}"}}') > before, how
        assert attnd.metric("attnd_regions") == 0  # they went with their clients
    finally:
        exit_code = attnd.stop()
    assert exit_code == 0, attnd.log()


def test_s43_a_taken_port_is_refused(server):
    """Case S43."""
    done = subprocess.run(
        [BIN_DIR / "attnd", f"--listen={server.address}", "--http_listen="], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert server.address in done.stderr + done.stdout


def test_an_idle_server_hardly_wakes(tmp_path):
    """One thread watches over the connections', however many those are: 50 times a second."""
    server = Attnd(tmp_path, "--io_threads=16", "--devices=cpu", "--drain_delay_ms=0")
    try:
        wait_until(lambda: server.http("/readyz")[0] == 200, "attnd is ready")
        time.sleep(1)  # what starts has started
        before = wake_ups(server.process)
        time.sleep(2)
        assert wake_ups(server.process) - before < 2 * 200
    finally:
        server.stop()
