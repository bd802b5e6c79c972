"""Against a server that fails, or answers what was not asked: retries as sent, and answers that do not fit."""

import concurrent.futures

import grpc
import numpy as np
import pytest
from problems import small_problem

import attnd
from attnd import wire
from attnd.v1 import attnd_pb2 as pb

FROM_ATTND = ("attnd-version", "0")
O = np.arange(160, dtype=np.float32)  # noqa: E741
LSE = np.arange(10, dtype=np.float32)


def header(**changes):
    spec = pb.TensorSpec(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 2, 5, 16])
    lse = pb.TensorSpec(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 2, 5])
    return pb.ComputeResponseHeader(**{"o": spec, "lse": lse, "kernel": "fake", **changes})


def unary(**changes):
    return pb.ComputeResponse(**{"header": header(), "o": O.tobytes(), "lse": LSE.tobytes(), **changes}).SerializeToString()


def chunk(operand, offset_bytes, data):
    part = pb.Chunk(operand=operand, offset_bytes=offset_bytes, data=data)
    return pb.ComputeStreamResponse(chunk=part).SerializeToString()


def first(**changes):
    return pb.ComputeStreamResponse(header=header(**changes)).SerializeToString()


def streamed():
    return [first(), chunk(pb.OPERAND_LSE, 0, LSE.tobytes()), chunk(pb.OPERAND_O, 0, O.tobytes())]


class Fake:
    """Answers each call with the next of `script`: messages, or (code, trailers)."""

    def __init__(self):
        self.script, self.metadata = [], []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, call):
        if call.method.endswith("/ComputeStream"):
            return grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(self.compute) if call.method.endswith("/Compute") else None

    def next(self, context):
        self.metadata.append(dict(context.invocation_metadata()))
        answer = self.script.pop(0)
        if isinstance(answer, tuple):
            context.set_trailing_metadata(answer[1:])
            context.abort(answer[0], "as the script says")
        return answer

    def compute(self, request, context):
        self.request = request
        return self.next(context)

    def stream(self, requests, context):
        self.request = list(requests)
        yield from self.next(context)


@pytest.fixture
def fake():
    fake = Fake()
    yield fake
    fake.server.stop(0).wait()


@pytest.fixture
def ask(fake, connect):
    def ask(*script, transport="unary", problem=None, **options):
        fake.script, fake.metadata = list(script), []
        client = connect(fake.address, transport=transport, local_socket="none", **options)
        return client.compute(problem or small_problem(lse=True))

    return ask


CODE = grpc.StatusCode


@pytest.mark.parametrize(
    "script, tries",
    [
        ([], 1),
        ([(CODE.UNAVAILABLE,)] * 3, 4),
        ([(CODE.UNAVAILABLE, FROM_ATTND)], 2),
        ([(CODE.RESOURCE_EXHAUSTED, FROM_ATTND, ("grpc-retry-pushback-ms", "1"))] * 2, 3),
        ([(CODE.INTERNAL,), (CODE.UNKNOWN,)], 3),
    ],
)
@pytest.mark.parametrize("transport", ["unary", "stream"])
def test_retried(ask, fake, transport, script, tries):
    result = ask(*script, unary() if transport == "unary" else streamed(), transport=transport)
    assert result.tries == tries == len(fake.metadata) and fake.script == []
    assert (result.o.reshape(-1) == O).all() and (result.lse.reshape(-1) == LSE).all() and result.kernel == "fake"


@pytest.mark.parametrize(
    "script, kind, tries",
    [
        ([(CODE.UNAVAILABLE,)] * 5, attnd.Unavailable, 4),
        ([(CODE.RESOURCE_EXHAUSTED, FROM_ATTND)], attnd.ResourceExhausted, 1),
        ([(CODE.RESOURCE_EXHAUSTED, FROM_ATTND, ("grpc-retry-pushback-ms", "-1"))], attnd.ResourceExhausted, 1),
        ([(CODE.INTERNAL, FROM_ATTND)], attnd.Internal, 1),
        ([(CODE.UNKNOWN, FROM_ATTND)], attnd.Error, 1),
        ([(CODE.INVALID_ARGUMENT,)], attnd.InvalidArgument, 1),
        ([(CODE.UNIMPLEMENTED,)], attnd.Unimplemented, 1),
        ([(CODE.PERMISSION_DENIED,)], attnd.PermissionDenied, 1),
    ],
)
def test_given_up(ask, fake, script, kind, tries):
    with pytest.raises(kind, match="as the script says") as error:
        ask(*script)
    assert error.value.tries == tries == len(fake.metadata)
    assert error.value.code == script[0][0].name


def test_one_try(ask):
    with pytest.raises(attnd.Unavailable) as error:
        ask((CODE.UNAVAILABLE,), max_tries=1)
    assert error.value.tries == 1


def test_no_retry_beyond_the_deadline(ask):
    with pytest.raises(attnd.ResourceExhausted) as error:
        ask((CODE.RESOURCE_EXHAUSTED, ("grpc-retry-pushback-ms", "50000")), problem=small_problem(deadline=20.0))
    assert error.value.tries == 1


def test_what_is_sent(ask, fake):
    """As protobuf reads it."""
    problem = small_problem(lse=True, window=(3, None), scale=0.5, alibi_slopes=[0.5, 1.5], priority=2, causal="top-left")
    ask(unary(), problem=problem)
    sent = pb.ComputeRequest.FromString(fake.request)
    assert fake.metadata[0]["attnd-request-bytes"] == str(len(fake.request))
    assert (sent.q, sent.k, sent.v) == tuple(x.tobytes() for x in (problem.q, problem.k, problem.v))
    assert list(sent.header.k.shape) == [1, 1, 9, 16] and sent.header.k.dtype == pb.DATA_TYPE_FLOAT32
    assert sent.header.window.left == 3 and not sent.header.window.HasField("right")
    assert list(sent.header.alibi_slopes) == [0.5, 1.5] and sent.header.scale == 0.5 and sent.header.priority == 2
    assert sent.header.causal == pb.CAUSAL_ALIGNMENT_TOP_LEFT and sent.header.want_lse
    assert not sent.header.HasField("softcap") and not sent.header.HasField("o_destination")

    ask(streamed(), transport="stream", problem=problem)
    parts = [pb.ComputeStreamRequest.FromString(message) for message in fake.request]
    assert parts[0].header == sent.header
    assert b"".join(part.chunk.data for part in parts[1:]) == sent.q + sent.k + sent.v
    assert max(map(len, fake.request)) <= wire.MAX_STREAM_MESSAGE_BYTES
    assert fake.metadata[0]["attnd-request-bytes"] == str(wire.MAX_STREAM_MESSAGE_BYTES)


def test_chunks_in_any_order(ask):
    halves = [chunk(pb.OPERAND_O, 320, O.tobytes()[320:]), chunk(pb.OPERAND_O, 0, O.tobytes()[:320])]
    result = ask([first(), halves[0], chunk(pb.OPERAND_LSE, 0, LSE.tobytes()), halves[1]], transport="stream")
    assert (result.o.reshape(-1) == O).all() and (result.lse.reshape(-1) == LSE).all()


OTHER_SHAPE = pb.TensorSpec(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 2, 5, 15])
OTHER_DTYPE = pb.TensorSpec(dtype=pb.DATA_TYPE_FLOAT16, shape=[1, 2, 5, 16])


@pytest.mark.parametrize(
    "transport, answer",
    [
        ("unary", b""),
        ("unary", b"\xff\xff\xff"),
        ("unary", unary()[:-1]),
        ("unary", unary() + b"\x12\x01\x00"),
        ("unary", unary(o=b"")),
        ("unary", unary(lse=b"")),
        ("unary", unary(o=O.tobytes() + b"\0")),
        ("unary", unary(header=header(o=OTHER_SHAPE))),
        ("unary", unary(header=header(o=OTHER_DTYPE))),
        ("unary", unary(header=header(lse=pb.TensorSpec()))),
        ("stream", []),
        ("stream", [first()]),
        ("stream", [chunk(pb.OPERAND_O, 0, O.tobytes()), chunk(pb.OPERAND_LSE, 0, LSE.tobytes())]),
        ("stream", [first(), chunk(pb.OPERAND_O, 4, O.tobytes())]),
        ("stream", [first(), chunk(pb.OPERAND_O, -4, b"1234")]),
        ("stream", [first(), chunk(pb.OPERAND_Q, 0, b"1234")]),
        ("stream", [first(), chunk(pb.OPERAND_O, 0, O.tobytes()), chunk(pb.OPERAND_O, 0, LSE.tobytes())]),
        ("stream", [first(), chunk(pb.OPERAND_LSE, 0, LSE.tobytes()), *[chunk(pb.OPERAND_O, 0, O.tobytes()[:320])] * 2]),
        ("stream", [b"\x12\x05abc"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_that_do_not_fit(ask, transport, answer):
    with pytest.raises(attnd.Internal, match="answer"):
        ask(answer, transport=transport)


def test_fields_of_a_newer_server_are_passed_over(ask):
    newer = b"\xf8\x3f\x07" + b"\xf9\x3f12345678" + b"\xfd\x3f1234" + b"\xfa\x3f\x03abc"  # 1023: of all wire types
    assert (ask(unary() + newer).o.reshape(-1) == O).all()


def test_a_head_is_shared_by_equal_problems_alone(ask, fake):
    """Arrays and lists as options may change between calls, and are read anew."""

    def sent(**options):
        ask(unary(), problem=small_problem(lse=True, **options))
        return pb.ComputeRequest.FromString(fake.request).header

    slopes, window = np.array([0.5, 1.5], np.float32), [3, 1]
    first_header = sent(alibi_slopes=slopes, window=window, scale=0.5)
    slopes[0], window[0] = 0.25, 2
    second_header = sent(alibi_slopes=slopes, window=window, scale=0.25)
    assert list(first_header.alibi_slopes) == [0.5, 1.5] and list(second_header.alibi_slopes) == [0.25, 1.5]
    assert (first_header.window.left, second_header.window.left) == (3, 2)
    assert (first_header.scale, second_header.scale) == (0.5, 0.25)
    assert sent() == sent() and wire._cached_head_of.cache_info().hits > 0
