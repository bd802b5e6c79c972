"""Typed exceptions: code, field, hint."""

import pickle
import socket
import time

import numpy as np
import pytest
from problems import check_problem, large_problem, normal, qkv, small_problem

import attnd
from attnd import errors


@pytest.mark.parametrize(
    "change, field",
    [
        ({"scale": -1.0}, "scale"),
        ({"softcap": float("inf")}, "softcap"),
        ({"alibi_slopes": [1.0]}, "alibi_slopes"),
        ({"window": (-1, 0)}, "window"),
        ({"priority": 10}, "priority"),
        ({"layout": "thd"}, "q"),
        ({"cu_seqlens_q": [0, 5]}, "cu_seqlens_q"),
        ({"cu_seqlens_k": [0, 5]}, "cu_seqlens_k"),
        ({"k": normal(2, 1, 1, 9, 15), "v": normal(3, 1, 1, 9, 15)}, "q"),
        ({"v": normal(3, 1, 1, 8, 16)}, "k"),
        ({"q": normal(1, 1, 3, 5, 16), "k": normal(2, 1, 2, 9, 16), "v": normal(3, 1, 2, 9, 16)}, "q"),
        ({"q": normal(1, 1, 2, 5, 16).astype(np.float16)}, "q"),
    ],
    ids=str,
)
def test_what_the_server_refuses(client, change, field):
    problem = small_problem()
    with pytest.raises(attnd.InvalidArgument) as error:
        client.attention(**{"q": problem.q, "k": problem.k, "v": problem.v, **change})
    assert (error.value.code, error.value.field, error.value.tries) == ("INVALID_ARGUMENT", field, 1)
    assert error.value.from_attnd and error.value.message
    check_problem(client.attention(problem.q, problem.k, problem.v), problem)  # it harms nobody


@pytest.mark.parametrize(
    "change, field, says",
    [
        ({"causal": "middle"}, "causal", "'top-left'"),
        ({"layout": "hbsd"}, "layout", "'thd'"),
        ({"layout": ["bhsd"]}, "layout", "'thd'"),
        ({"window": 5}, "window", r"\(left, right\)"),
        ({"window": (1, 2, 3)}, "window", r"\(left, right\)"),
        ({"window": ("a", 1)}, "window", "window"),
        ({"scale": "big"}, "scale", "scale"),
        ({"priority": -1}, "priority", "priority"),
        ({"deadline": "soon"}, "deadline", "'soon'"),
        ({"deadline": float("nan")}, "deadline", "nan"),
        ({"alibi_slopes": "steep"}, "alibi_slopes", "alibi_slopes"),
        ({"cu_seqlens_q": [0.5, 1.5]}, "cu_seqlens_q", "cu_seqlens_q"),
    ],
    ids=str,
)
def test_what_is_refused_before_it_is_sent(connect, change, field, says):
    nobody = connect("127.0.0.1:1", local_socket="none")
    with pytest.raises(attnd.InvalidArgument, match=says) as error:
        nobody.attention(*qkv(), **change)
    assert (error.value.field, error.value.tries) == (field, 0)


@pytest.mark.parametrize("address", ["", "host", "host:", ":7070", "host:0", "host:65536", "unix:", "a:b:c"])
def test_addresses(connect, address):
    with pytest.raises(attnd.InvalidArgument) as error:
        connect(address)
    assert error.value.field == "address"


def test_transports(connect):
    with pytest.raises(attnd.InvalidArgument, match="'region'"):
        connect("127.0.0.1:1", transport="pigeon")


def test_no_server(connect):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(attnd.Unavailable) as error:
            connect(address, local_socket="none").attention(*qkv())
    assert error.value.tries == 4 and isinstance(error.value, ConnectionError)
    assert error.value.hint == f"is attnd running at {address}?" and address in str(error.value)


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
def test_a_deadline(server, connect, transport):
    client = connect(server.address, transport=transport, local_socket=server.side_socket)
    q = normal(1, 1, 8, 4096, 64)
    begin = time.monotonic()
    with pytest.raises(attnd.DeadlineExceeded) as error:
        client.attention(q, q, q, deadline=0.05)
    assert isinstance(error.value, TimeoutError)
    assert time.monotonic() - begin < 30  # the call alone would take some
    problem = small_problem(deadline=60.0)
    check_problem(client.compute(problem).o, problem)


def test_a_deadline_that_has_passed(client):
    for problem in (small_problem(deadline=-1.0), large_problem(1, deadline=0.0)):
        with pytest.raises(attnd.DeadlineExceeded) as error:
            client.compute(problem)
        assert error.value.tries == 0


def test_a_problem_that_never_fits(connect, tmp_path):
    from attnd_process import Attnd

    server = Attnd(tmp_path, "--drain_delay_ms=0", "--max_unary_bytes=2000000", "--max_stream_bytes=8000000")
    try:
        with pytest.raises(attnd.ResourceExhausted, match="max_stream_bytes") as error:
            connect(server.address).compute(large_problem(9))
        assert error.value.tries == 2 and error.value.pushback_ms < 0  # as a message, and as a stream
        with pytest.raises(attnd.ResourceExhausted, match="max_unary_bytes"):
            connect(server.address, transport="unary").compute(large_problem(4))
        # What a message does not take, a stream does, by itself.
        problem = large_problem(4)
        result = connect(server.address).compute(problem)
        assert result.transport == "stream" and result.tries == 2
        check_problem(result.o, problem)
    finally:
        assert server.stop() == 0, server.log()


def test_no_region_where_the_server_has_no_socket(server, connect, tmp_path):
    for path in ("none", f"{tmp_path}/nothing"):
        with pytest.raises(attnd.NotFound, match="side socket"):
            connect(server.address, transport="region", local_socket=path).attention(*qkv())


def test_a_closed_client(server, connect):
    client = connect(server.address)
    client.attention(*qkv())
    client.close()
    with pytest.raises(attnd.FailedPrecondition, match="closed"):
        client.attention(*qkv())


def test_errors_travel_between_processes():
    error = errors.of_code("INVALID_ARGUMENT", "q is odd", field="q", hint="make it even")
    error.tries = 3
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is attnd.InvalidArgument
    assert (copy.message, copy.field, copy.hint, copy.tries) == ("q is odd", "q", "make it even", 3)
    assert str(copy) == "INVALID_ARGUMENT: q is odd (make it even)"


def test_a_code_without_a_class_of_its_own():
    error = errors.of_code("ABORTED", "x")
    assert type(error) is attnd.Error and error.code == "ABORTED" and attnd.Error.code == "UNKNOWN"
