"""ModelStreamInfer by tritonclient."""

import queue

import numpy as np

from calls import MODEL, check, inputs, outputs, qkv

PATIENCE_S = 120


class Stream:
    """A client's stream; next() is the next answer, (result, error)."""

    def __init__(self, client):
        self.client, self.answers = client, queue.Queue()
        client.start_stream(lambda result, error: self.answers.put((result, error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()

    def send(self, problem, **options):
        self.client.async_stream_infer(MODEL, inputs(*problem), **options)

    def next(self):
        return self.answers.get(timeout=PATIENCE_S)


def test_answers_come_in_the_order_of_requests(client):
    # Long and short in turn: the short ones are ready first.
    problems = [qkv(q_len=2000 if i % 4 == 0 else 3 + i, kv_len=2000 if i % 4 == 0 else 9, seed=i) for i in range(16)]
    with Stream(client) as stream:
        for i, problem in enumerate(problems):
            stream.send(problem, request_id=str(i))
        for i, problem in enumerate(problems):
            result, error = stream.next()
            assert error is None, error
            assert result.get_response().id == str(i)
            check(result, *problem)


def test_a_request_that_fails_leaves_the_others_alone(client):
    good = qkv()
    q, k, v = good
    with Stream(client) as stream:
        stream.send(good, request_id="first")
        stream.send((q, k, v[:, :, 1:]), request_id="bad")
        stream.send(good, request_id="unknown", parameters={"casual": True})
        stream.send(good, request_id="last", parameters={"causal": True})
        result, error = stream.next()
        assert error is None and result.get_response().id == "first"
        for word in ("V", "casual"):
            result, error = stream.next()
            assert result is None and word in error.message()
        result, error = stream.next()
        assert error is None and result.get_response().id == "last"
        check(result, *good, causal="bottom-right")


def test_the_same_bits_as_a_call(client):
    problem = qkv(np.float16)
    alone = client.infer(MODEL, inputs(*problem), outputs=outputs("O")).as_numpy("O")
    with Stream(client) as stream:
        stream.send(problem, outputs=outputs("O"))
        result, error = stream.next()
    assert error is None and np.array_equal(result.as_numpy("O"), alone)


def test_a_stream_can_be_left_in_the_middle(client):
    problem = qkv(q_len=2000, kv_len=2000)
    stream = Stream(client)
    for _ in range(4):
        stream.send(problem)
    client.stop_stream(cancel_requests=True)
    check(client.infer(MODEL, inputs(*qkv())), *qkv())
    with Stream(client) as again:
        again.send(problem)
        result, error = again.next()
    assert error is None
    check(result, *problem)
