"""The engine that is the C++ client: how it is found, how it ends, and that it says what grpcio's says."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from attnd_process import wait_until
from problems import check_problem, large_problem, normal, small_problem
from test_clients import PATIENCE_S, cancelled, long_problem, received

import attnd
from attnd import client_library as library

SYMBOLS = {
    "version", "options_init", "request_init", "connect", "close", "compute", "start", "wait", "cancel", "release",
    "get_server_info",
}  # fmt: skip


def connect(server, monkeypatch, path, **options):
    monkeypatch.setenv("ATTND_CLIENT_LIBRARY", path)
    return attnd.Client(server.address, **{"local_socket": server.side_socket, **options})


def test_which_engine(server, library_path, monkeypatch):
    assert connect(server, monkeypatch, library_path).engine == "native"
    assert connect(server, monkeypatch, "").engine == "grpcio"
    monkeypatch.delenv("ATTND_CLIENT_LIBRARY")
    assert attnd.Client(server.address).engine == "native"  # which is loaded already


@pytest.mark.parametrize("name", ["nothing.so", "text.so"])
def test_a_library_that_was_asked_for_and_cannot_be_used(monkeypatch, tmp_path, name):
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setenv("ATTND_CLIENT_LIBRARY", f"{tmp_path}/{name}")
    with pytest.raises(attnd.FailedPrecondition, match=name) as error:
        attnd.Client("127.0.0.1:7070")
    assert "nothing" in error.value.hint


def test_a_second_copy_is_refused(server, library_path, monkeypatch, tmp_path):
    """It would end the process."""
    assert connect(server, monkeypatch, library_path).engine == "native"
    copy = shutil.copy(library_path, tmp_path)
    with pytest.raises(attnd.FailedPrecondition, match="this process has"):
        connect(server, monkeypatch, copy)
    os.symlink(library_path, tmp_path / "same.so")
    assert connect(server, monkeypatch, f"{tmp_path}/same.so").engine == "native"


def test_another_version_is_refused(library_path, monkeypatch):
    monkeypatch.setattr(attnd, "__version__", "9.9.0")
    with pytest.raises(OSError, match="0.1.0.*9.9.0"):
        library.Library(library_path)


def test_the_library_shows_the_c_abi_alone(library_path):
    command = ["nm", "-D", "--defined-only", library_path]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert {line.split()[2] for line in lines} == {f"attnd_client_{name}" for name in SYMBOLS}


def test_structs_have_the_librarys_sizes(library_path):
    """Which refuses one that is larger than it knows, and one that is smaller than its first version."""
    lib, said = library.Library(library_path), ctypes.create_string_buffer(500)
    client, options = ctypes.c_void_p(), library.Options()
    lib.options_init(ctypes.byref(options), ctypes.sizeof(options))
    connect_it = lambda: lib.connect(b"127.0.0.1:1", ctypes.byref(options), ctypes.byref(client), said, len(said))  # noqa: E731
    assert connect_it() == 0 and options.max_tries == 4 and options.max_region_bytes == 2 << 30
    requests = {"request": library.Request(), "result": library.Result(), "info": library.ServerInfo()}

    def use(name):
        struct = requests[name]
        if name == "request":
            return lib.start(client, ctypes.byref(struct), ctypes.byref(ctypes.c_void_p()), said, len(said))
        if name == "result":
            return lib.wait(None, 0, ctypes.byref(struct))
        return lib.get_server_info(client, 0, ctypes.byref(struct), said, len(said))

    for name, struct in requests.items():
        for change, code in ((8, 12), (-8, 3)):
            struct.struct_size_bytes = ctypes.sizeof(struct) + change
            assert use(name) == code, name
    lib.close(client)


def problems_that_fail():
    q, k = normal(1, 1, 2, 5, 16), normal(2, 1, 1, 9, 16)
    yield attnd.Problem(q, k, k, scale=-1.0)
    yield attnd.Problem(q, k, k, scale=0.0)
    yield attnd.Problem(q, k, k, scale=float("nan"))
    yield attnd.Problem(q, k, k, softcap=-1.0)
    yield attnd.Problem(q, k, k, window=(-1, 0))
    yield attnd.Problem(q, k, k, window=(0, -5))
    yield attnd.Problem(q, k, k, priority=10)
    yield attnd.Problem(q, k, k, alibi_slopes=[1.0, 2.0, 3.0])
    yield attnd.Problem(q, k, k[:, :, :8])
    yield attnd.Problem(q, k[..., :8], k[..., :8])
    yield attnd.Problem(q[0, 0], k, k, lse=True)
    yield attnd.Problem(q[0, 0, 0, 0], k, k)
    yield attnd.Problem(q.reshape((1,) * 20 + (10, 16)), k, k)
    yield attnd.Problem(q, k, k, layout="thd")
    yield attnd.Problem(q, k, k, cu_seqlens_k=[0, 9])
    yield attnd.Problem(q, k.astype(np.float16), k)
    yield attnd.Problem(q, k, k, deadline=-1.0)
    yield attnd.Problem(q, k, k, causal="no")
    yield attnd.Problem(q, k, k, out=np.zeros(3, np.float32))


@pytest.mark.parametrize("transport", ["auto", "unary", "stream", "region"])
def test_both_engines_fail_alike(server, library_path, monkeypatch, transport):
    clients = [connect(server, monkeypatch, path, transport=transport) for path in ("", library_path)]
    for number, problem in enumerate(problems_that_fail()):
        facts = []
        for client in clients:
            with pytest.raises(attnd.Error) as error:
                client.compute(problem)
            e = error.value
            facts.append((type(e), e.code, e.message, e.field, e.hint, e.tries, e.from_attnd, e.pushback_ms))
        assert facts[0] == facts[1], number
    for client in clients:
        check_problem(client.compute(small_problem()).o, small_problem())
        client.close()


@pytest.mark.parametrize("transport", ["auto", "unary", "stream", "region"])
def test_both_engines_answer_alike(server, library_path, monkeypatch, transport):
    """To the bit, and with the same account."""
    clients = [connect(server, monkeypatch, path, transport=transport) for path in ("", library_path)]
    for problem in (small_problem(lse=True), large_problem(1, lse=True, causal=True)):
        grpcio, native = (client.compute(problem) for client in clients)
        assert (grpcio.o == native.o).all() and (grpcio.lse == native.lse).all()
        for name in ("transport", "backend", "kernel", "device", "batch_size", "tries"):
            assert getattr(grpcio, name) == getattr(native, name), name
        assert native.batch_id > grpcio.batch_id and native.timing.total_us >= native.timing.run_us > 0
        assert repr(native).startswith(f"Result({native.kernel}, {native.transport}, Timing(")
    assert clients[0].server_info() == clients[1].server_info()
    for client in clients:
        client.close()


def test_the_gil_is_free_during_a_call(server, library_path, monkeypatch):
    with connect(server, monkeypatch, library_path) as client:
        before, steps = received(server), 0
        call = client.submit(long_problem())
        wait_until(lambda: received(server) > before, "the call is on its way")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            steps += 1
        assert steps > 10_000 and not call.done()
        call.cancel()
        with pytest.raises(attnd.Cancelled):
            call.result(PATIENCE_S)


def test_ctrl_c_ends_a_call(server, engine):
    """And the client goes on. The server hears of it from the C++ client; grpcio leaves the call alone."""
    with attnd.Client(server.address, local_socket=server.side_socket) as client:
        received_before, cancelled_before = received(server), cancelled(server)

        def interrupt():
            wait_until(lambda: received(server) > received_before, "the call is on its way")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.compute(long_problem())
        thread.join(PATIENCE_S)
        if engine == "native":
            wait_until(lambda: cancelled(server) > cancelled_before, "the server knows")
        check_problem(client.compute(small_problem()).o, small_problem())


def test_close_under_64_threads(server, engine):
    """Each call ends in an answer, Cancelled or FailedPrecondition."""
    client = attnd.Client(server.address, local_socket=server.side_socket)
    ends, answered = [], threading.Event()

    def call(seed):
        problem = small_problem(seed) if seed % 4 else large_problem(1)
        try:
            while True:
                check_problem(client.compute(problem).o, problem)
                answered.set()
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    assert answered.wait(PATIENCE_S)
    client.close()
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ends) == 64 and {type(end) for end in ends} <= {attnd.Cancelled, attnd.FailedPrecondition}


LEFT_OPEN = """
import sys, threading, time
import attnd
sys.path.insert(0, sys.argv[2])
from problems import large_problem, normal, small_problem

client, forgotten = (attnd.Client(sys.argv[1], local_socket=sys.argv[3]) for _ in range(2))
forgotten.compute(large_problem(1))
del forgotten
q = normal(1, 1, 8, 8192, 64)
threading.Thread(target=lambda: client.compute(attnd.Problem(q, q, q)), daemon=True).start()
time.sleep(0.3)
client.compute(small_problem())
print("done", flush=True)
"""


def test_a_program_may_leave_clients_open(server, engine):
    """Even during a call: it ends, and at once."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([*sys.path, os.path.join(here, "../e2e")])
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, server.address, here, server.side_socket],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"
