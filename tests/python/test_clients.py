"""Many calls at once, cancellation, closing, forks, and a server that is started anew."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from attnd_process import Attnd, wait_until
from problems import check_problem, large_problem, normal, small_problem

import attnd

PATIENCE_S = 120
LONG = 8192  # tokens: a call that takes seconds


def long_problem():
    q = normal(1, 1, 8, LONG, 64)
    return attnd.Problem(q, q, q)


def received(server):
    return server.metric("attnd_requests_received_total")


def cancelled(server):
    return server.metric('attnd_requests_finished_total{code="CANCELLED"')


@pytest.mark.parametrize("transport", ["unary", "stream", "region", "auto"])
def test_64_threads(server, engine, transport):
    with attnd.Client(server.address, transport=transport, local_socket=server.side_socket) as client:
        problems = [small_problem(seed) if seed % 4 else large_problem(1) for seed in range(64)]
        outputs = [None] * 64
        barrier = threading.Barrier(64)

        def call(i):
            barrier.wait()
            for _ in range(3):
                outputs[i] = client.compute(problems[i]).o

        threads = [threading.Thread(target=call, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    for o, problem in zip(outputs, problems):
        check_problem(o, problem)


@pytest.mark.parametrize("transport", ["unary", "stream", "region", "auto"])
def test_64_coroutines(server, transport):
    problems = [small_problem(seed) if seed % 4 else large_problem(1) for seed in range(64)]

    async def main():
        async with attnd.AsyncClient(server.address, transport=transport, local_socket=server.side_socket) as client:
            for _ in range(3):
                results = await asyncio.gather(*map(client.compute, problems))
        return results

    for result, problem in zip(asyncio.run(main()), problems):
        check_problem(result.o, problem)


def test_attention_many(client):
    problems = [small_problem(seed, lse=seed % 2 == 0) for seed in range(20)]
    outputs = client.attention_many(iter(problems), in_flight=4)
    assert len(outputs) == 20
    for output, problem in zip(outputs, problems):
        check_problem(output[0] if problem.lse else output, problem)
        if problem.lse:
            assert output[1].shape == (1, 2, 5)
    assert client.attention_many([]) == []


def test_attention_many_raises_the_first_error(client):
    bad = [small_problem(scale=-1.0 if seed == 5 else None) for seed in range(20)]
    with pytest.raises(attnd.InvalidArgument, match="scale"):
        client.attention_many(bad, in_flight=4)
    check_problem(client.compute(small_problem()).o, small_problem())


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
def test_cancel_on_a_thread(server, engine, transport):
    with attnd.Client(server.address, transport=transport, local_socket=server.side_socket) as client:
        received_before, cancelled_before = received(server), cancelled(server)
        call = client.submit(long_problem())
        wait_until(lambda: received(server) > received_before, "the call is on its way")
        call.cancel()
        with pytest.raises(attnd.Cancelled):
            call.result(PATIENCE_S)
        assert call.done()
        call.cancel()  # does nothing
        wait_until(lambda: cancelled(server) > cancelled_before, "the server knows")
        check_problem(client.submit(small_problem()).result().o, small_problem())


def test_result_waits_no_longer_than_it_is_told(server, engine):
    with attnd.Client(server.address, local_socket="none") as client:
        call = client.submit(long_problem())
        with pytest.raises(TimeoutError, match="within 0.01 s"):
            call.result(0.01)
        call.cancel()
        with pytest.raises(attnd.Cancelled):
            call.result()


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
def test_cancel_a_task(server, transport):
    async def main():
        async with attnd.AsyncClient(server.address, transport=transport, local_socket=server.side_socket) as client:
            received_before, cancelled_before = received(server), cancelled(server)
            task = asyncio.ensure_future(client.compute(long_problem()))
            while received(server) == received_before:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while cancelled(server) == cancelled_before:
                await asyncio.sleep(0.01)
            check_problem((await client.compute(small_problem())).o, small_problem())
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.compute(long_problem()), 0.1)

    asyncio.run(main())


def test_close_cancels_what_is_under_way(server, engine):
    client = attnd.Client(server.address, local_socket="none")
    errors = []

    def call():
        try:
            client.compute(long_problem())
        except attnd.Error as error:
            errors.append(error)

    before = received(server)
    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: received(server) > before, "the call is on its way")
    client.close()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [attnd.Cancelled]


def test_regions_are_kept_and_given_up(server, monkeypatch):
    """By grpcio's engine; the C++ client's are tests/client's."""
    monkeypatch.setenv("ATTND_CLIENT_LIBRARY", "")
    with attnd.Client(server.address, local_socket=server.side_socket, max_region_bytes=8 << 20) as client:
        regions = client._core.regions
        for _ in range(3):
            assert client.compute(large_problem(1)).transport == "region"
        assert len(regions._kept) == 1 and regions._held_bytes == regions._kept[0].size_bytes
        first = regions._kept[0]
        with pytest.raises(attnd.InvalidArgument):
            client.compute(large_problem(1, scale=-1.0))  # the server says that it has not touched it
        assert regions._kept == [first]
        with monkeypatch.context() as patched:
            error_of = client._core.error_of
            patched.setattr(client._core, "error_of", lambda code, details, trailers: error_of(code, details, []))
            with pytest.raises(attnd.InvalidArgument):
                client.compute(large_problem(1, scale=-1.0))  # whoever said that: the server may still be using it
        assert regions._kept == [] and regions._held_bytes == 0 and first._side.fileno() == -1
        # Larger than the client may hold: another way.
        assert client.compute(large_problem(8)).transport == "unary"
        # Those that served nobody for longest make room.
        for mebibytes in (1, 3, 2, 3):
            assert client.compute(large_problem(mebibytes)).transport == "region"
            assert regions._held_bytes <= 8 << 20
    assert regions._held_bytes == 0


def test_another_servers_side_socket_is_not_taken_for_ones_own(server, connect, tmp_path):
    """As with a port that is forwarded from another host."""
    other = Attnd(tmp_path, "--drain_delay_ms=0")
    try:
        assert connect(other.address, local_socket=server.side_socket).compute(large_problem(1)).transport == "unary"
        with pytest.raises(attnd.FailedPrecondition, match="instance"):
            connect(other.address, local_socket=server.side_socket, transport="region").compute(large_problem(1))
    finally:
        assert other.stop() == 0, other.log()


@pytest.mark.parametrize("mebibytes, transport", [(0, "unary"), (1, "region"), (1, "stream")])
def test_a_server_that_is_started_anew(connect, tmp_path, mebibytes, transport):
    problem = large_problem(mebibytes) if mebibytes else small_problem()
    flags = ["--drain_delay_ms=0", f"--listen=unix:{tmp_path}/socket", f"--local_socket={tmp_path}/side.sock"]
    forced = "auto" if transport == "region" else transport
    client = connect(f"unix:{tmp_path}/socket", transport=forced, local_socket=f"{tmp_path}/side.sock")
    for _ in range(2):
        server = Attnd(tmp_path, *flags)
        try:
            wait_until(lambda: answers(client, problem, transport), "calls are answered")
        finally:
            assert server.stop() == 0, server.log()
        with pytest.raises(attnd.Unavailable):
            client.compute(problem)


@pytest.mark.parametrize("transport", ["unary", "stream"])
def test_a_server_that_is_there_again_is_found_at_once(connect, tmp_path, transport):
    """gRPC 1.51 tries to connect during calls, and between them every 5 s only."""
    flags = ["--drain_delay_ms=0", f"--listen=unix:{tmp_path}/socket"]
    client = connect(f"unix:{tmp_path}/socket", transport=transport, local_socket="none")
    server = Attnd(tmp_path, *flags)
    try:
        client.compute(small_problem())
        for _ in range(2):
            server.stop()
            with pytest.raises(attnd.Unavailable):
                client.compute(small_problem())
            server = Attnd(tmp_path, *flags)
            begin = time.monotonic()
            wait_until(lambda: answers(client, small_problem(), transport), "calls are answered")
            assert time.monotonic() - begin < 3
    finally:
        server.stop()


def answers(client, problem, transport):
    """False while gRPC has not found the server; all else must be right."""
    try:
        result = client.compute(problem)
    except attnd.Unavailable:
        return False
    check_problem(result.o, problem)
    return result.transport == transport


def test_calls_in_flight_when_the_server_is_started_anew(engine, tmp_path):
    """Each ends in an answer or Unavailable; afterwards all are answers."""
    flags = ["--drain_delay_ms=0", f"--listen=unix:{tmp_path}/socket", f"--local_socket={tmp_path}/side.sock"]
    server = Attnd(tmp_path, *flags)
    address, side = f"unix:{tmp_path}/socket", f"{tmp_path}/side.sock"
    stop, answered, refused, wrong = threading.Event(), [], [], []

    def call(seed):
        problem = small_problem(seed) if seed % 2 else large_problem(1)
        with attnd.Client(address, local_socket=side) as client:
            while not stop.is_set():
                try:
                    check_problem(client.compute(problem).o, problem)
                    answered.append(server.process.pid)
                except attnd.Unavailable as error:
                    refused.append(error)
                except Exception as error:
                    wrong.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(answered) >= 40, "calls are answered")
        assert server.stop() == 0, server.log()
        server = Attnd(tmp_path, *flags)
        wait_until(lambda: answered.count(server.process.pid) >= 40, "calls are answered again")
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        server.stop()
    assert wrong == []


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
def test_s28_a_server_that_dies_during_a_call(connect, tmp_path, transport):
    """Case S28: the caller gets an error, at once."""
    server = Attnd(tmp_path, f"--local_socket={tmp_path}/side.sock")
    client = connect(server.address, transport=transport, local_socket=f"{tmp_path}/side.sock")
    client.compute(small_problem())
    before, problem = received(server), long_problem()

    def kill():
        wait_until(lambda: received(server) > before, "the call runs")
        server.process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(attnd.Unavailable):
            client.compute(problem)
    finally:
        killer.join(PATIENCE_S)
        server.wait()


FORK = """
import os, sys
import attnd
sys.path.insert(0, sys.argv[2])
from problems import check_problem, large_problem, small_problem

client = attnd.Client(sys.argv[1], local_socket=sys.argv[3])
client.compute(large_problem(1))
read, write = os.pipe()
if os.fork() == 0:
    said = []
    problem = small_problem()
    for use in (lambda: client.compute(problem), lambda: client.submit(problem), lambda: client.server_info()):
        try:
            use()
            said.append("answered")
        except attnd.FailedPrecondition as error:
            said.append(f"{'fork' in error.message} {'spawn' in error.hint}")
    client.close()
    os.write(write, repr(said).encode())
    sys.exit(0)  # as a program would, with all its destructors
os.close(write)
print(os.read(read, 1000).decode())
assert os.wait()[1] == 0
for problem in (small_problem(), large_problem(1)):
    check_problem(client.compute(problem).o, problem)
client.close()
print("parent done")
"""


def test_fork(server, engine):
    """The child gets a clear error, at once; the parent goes on."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([*sys.path, os.path.join(here, "../e2e")])
    done = subprocess.run(
        [sys.executable, "-c", FORK, server.address, here, server.side_socket],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{['True True'] * 3!r}\nparent done\n"


def test_two_event_loops(server):
    client = attnd.AsyncClient(server.address)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(client.compute(small_problem()))
    with pytest.raises(attnd.FailedPrecondition, match="event loop"):
        second.run_until_complete(client.compute(small_problem()))
    first.run_until_complete(client.close())
    first.close()
    second.close()


def test_server_info(client, server):
    info = client.server_info()
    assert info.max_head_dim == 256 and info.devices and info.instance_id and info.version == attnd.__version__
    assert np.isfinite(info.max_unary_bytes)
