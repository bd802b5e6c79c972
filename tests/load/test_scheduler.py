"""What the scheduler promises, through the whole server under load. Bounds are on ratios and counts: a promise is compared with the same
load on a server that was not asked for it."""

import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import time

import grpc
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from attnd_process import BIN_DIR, PATIENCE_S, Attnd, wait_until  # noqa: E402

METHOD = "/attnd.v1.AttentionService/Compute"


class Server(Attnd):
    """With one thread that computes, and a row of attnload's for what it is asked."""

    def __init__(self, folder, *flags):
        super().__init__(folder, "--threads=1", "--drain_delay_ms=0", *flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert self.stop() == 0, self.log()

    def start_load(self, *flags):
        command = [BIN_DIR / "attnload", "--server", self.address, "--json", "--warmup", "0", "--settle", "60s", *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def load(self, *flags):
        return row_of(self.start_load(*flags))


def row_of(load):
    out, err = load.communicate(timeout=PATIENCE_S)
    row = json.loads(out.splitlines()[0])
    assert row["sent"] == row["answered"] + row["failed"] + row["cancelled"] + row["lost"], row
    assert row["lost"] == row["wrong"] == 0, err
    return row


@pytest.fixture(scope="module")
def pb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proto")
    subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}", "attnd/v1/attnd.proto"], check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module("attnd.v1.attnd_pb2")


def small_request(pb):
    shape = [1, 1, 16, 16]
    zeros = bytes(4 * 16 * 16)
    request = pb.ComputeRequest(header=pb.ComputeHeader(), q=zeros, k=zeros, v=zeros)
    for spec in (request.header.q, request.header.k, request.header.v):
        spec.dtype = pb.DATA_TYPE_FLOAT32
        spec.shape.extend(shape)
    return request


# Head-of-line blocking: small requests beside two long ones, one after the other, in slices and whole.
def test_a_small_request_waits_for_a_slice_of_a_long_one(tmp_path):
    median_us = {}
    for slice_us in (20_000, 0):
        with Server(tmp_path, f"--max_slice_us={slice_us}") as server:
            server.load("--concurrency", "1", "--q_len", "2048", "--duration", "1s")  # predicted from now on
            long_ones = server.start_load("--concurrency", "2", "--q_len", "2048", "--duration", "6s")
            time.sleep(1)
            row = server.load("--rate", "20", "--q_len", "32", "--duration", "4s")
            assert row["failed"] == 0 and row["answered"] > 20
            median_us[slice_us] = row["p50_us"]
            assert row_of(long_ones)["failed"] == 0
    # A long one has 8 heads; whole, a small one waits for half of one and for another.
    assert median_us[20_000] < median_us[0] / 2, median_us


# Fairness: calls of a light tenant beside a flood of 64 callers (whose requests are short: else they would be passed as it is), as a tenant of its own and as one of the many.
def test_a_light_tenant_waits_for_a_slice_beside_a_flood(pb, tmp_path):
    tenants = tmp_path / "tenants"
    tenants.write_text("light\n127.0.0.1\n")
    socket = tmp_path / "attnd.sock"  # for the flood's tensors, so that it waits in the queue and not on its way there
    median_s = {}
    for flags in ((f"--tenants={tenants}", "--tenant_metadata=attnd-tenant"), ()):
        with Server(tmp_path, f"--local_socket={socket}", *flags) as server, grpc.insecure_channel(server.address) as channel:
            flood = server.start_load("--concurrency", "64", "--q_len", "256", "--duration", "8s", "--transport", "region",
                                      "--local_socket", socket)  # fmt: skip
            wait_until(lambda server=server: server.metric("attnd_queue_requests ") > 40, "the flood is there")
            call = channel.unary_unary(METHOD, pb.ComputeRequest.SerializeToString, pb.ComputeResponse.FromString)
            waits_s = []
            for _ in range(15):
                begun = time.monotonic()
                call(small_request(pb), timeout=PATIENCE_S, metadata=[("attnd-tenant", "light")])
                waits_s.append(time.monotonic() - begun)
            median_s[bool(flags)] = statistics.median(waits_s)
            assert row_of(flood)["failed"] == 0
            assert (server.metric('attnd_tenant_device_seconds_total{tenant="light"}') > 0) == bool(flags)
    assert median_s[True] < median_s[False] / 2, median_s


# A storm of deadlines that cannot be met, after a time in which the kind was seen to take longer: all are told so, and few are run.
def test_a_storm_of_hopeless_deadlines_is_not_run(tmp_path):
    kind = ("--q_heads", "1", "--head_dim", "16", "--q_len", "4096", "--max_tries", "1")
    with Server(tmp_path) as server:
        taught = server.load("--concurrency", "1", "--duration", "2s", *kind)
        assert taught["answered"] >= 10
        ran_before = server.metric("attnd_predicted_over_actual_ratio_count")
        deadline_ms = max(2, int(taught["stage_mean_us"]["run"] / 1000 / 4))
        storm = server.load("--rate", "100", "--duration", "3s", "--timeout_ms", str(deadline_ms), *kind)
        assert storm["answered"] == 0
        assert set(storm["failed_by_code"]) == {"DEADLINE_EXCEEDED"}
        ran = server.metric("attnd_predicted_over_actual_ratio_count") - ran_before
        assert ran <= storm["sent"] / 20, "what cannot be met is not run"
        assert server.metric('attnd_refusals_total{reason="hopeless"}') > storm["sent"] / 4
        # And the server is there for the next caller at once.
        assert server.load("--concurrency", "1", "--duration", "1s", *kind)["failed"] == 0


# Beyond saturation: what is predicted to wait is bounded, the rest is refused at once and told when to come again.
def test_overload_is_refused_and_the_rest_is_answered(tmp_path):
    kind = ("--q_heads", "1", "--head_dim", "16", "--q_len", "4096", "--max_tries", "1")
    with Server(tmp_path, "--max_queue_ms=200") as server:
        capacity = server.load("--concurrency", "4", "--duration", "3s", *kind)
        over = server.load("--rate", str(int(capacity["answered_per_s"] * 4)), "--duration", "5s", *kind)
        assert set(over["failed_by_code"]) == {"RESOURCE_EXHAUSTED"}
        assert over["failed"] > over["sent"] / 2
        assert over["answered_per_s"] > 0.6 * capacity["answered_per_s"], (over, capacity)
        refused = server.metric('attnd_refusals_total{reason="queue_time"}')
        assert refused == server.metric("attnd_retry_pushback_total") == over["failed"]
        assert server.metric("attnd_requests_received_total") == server.metric("attnd_requests_finished_total")
