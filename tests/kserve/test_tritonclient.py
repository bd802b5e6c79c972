"""What users of tritonclient[grpc] do, against the unmodified server: metadata, infer, async, statistics."""

import queue
import re

import numpy as np
import pytest
import tritonclient.grpc as triton

from calls import DTYPES, MODEL, check, check_o, expect_error, inputs, normal, outputs, qkv, tensor
from reference import attention

PATIENCE_S = 120


def test_server_and_model_say_what_they_are(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    server = client.get_server_metadata()
    assert server.name == "attnd" and server.version
    assert "statistics" in server.extensions
    model = client.get_model_metadata(MODEL)
    assert model.name == MODEL and list(model.versions) == ["1"]
    assert [t.name for t in model.inputs][:3] == ["Q", "K", "V"]
    assert [t.name for t in model.outputs] == ["O", "LSE"]
    assert list(model.inputs[0].shape) == [-1, -1, -1, -1] and model.inputs[0].datatype == "FP32"
    config = client.get_model_config(MODEL).config
    assert config.name == MODEL and config.max_batch_size == 0
    index = client.get_model_repository_index().models
    assert [(m.name, m.version, m.state) for m in index] == [(MODEL, "1", "READY")]


@pytest.mark.parametrize("name", list(DTYPES))
def test_infer_in_every_dtype(client, name):
    q, k, v = qkv(DTYPES[name])
    result = client.infer(MODEL, inputs(q, k, v), request_id=f"id-{name}", outputs=outputs("O", "LSE"))
    check(result, q, k, v)
    assert result.get_response().id == f"id-{name}"
    assert result.get_response().model_name == MODEL and result.get_response().model_version == "1"
    assert len(result.get_response().raw_output_contents) == 2


def test_outputs_are_those_that_are_asked_for(client):
    q, k, v = qkv()
    alone = client.infer(MODEL, inputs(q, k, v), outputs=outputs("O"))
    assert [o.name for o in alone.get_response().outputs] == ["O"]
    check(alone, q, k, v)
    lse = client.infer(MODEL, inputs(q, k, v), outputs=outputs("LSE"))
    assert [o.name for o in lse.get_response().outputs] == ["LSE"]
    both = client.infer(MODEL, inputs(q, k, v))
    assert [o.name for o in both.get_response().outputs] == ["O", "LSE"]
    assert np.array_equal(alone.as_numpy("O"), both.as_numpy("O"))
    assert np.array_equal(lse.as_numpy("LSE"), both.as_numpy("LSE"))


@pytest.mark.parametrize(
    "parameters, options",
    [
        ({"causal": True}, {"causal": "bottom-right"}),
        ({"causal": "top_left"}, {"causal": "top-left"}),
        ({"causal": False}, {}),
        ({"causal": True, "window_left": 7}, {"causal": "bottom-right", "window": (7, None)}),
        ({"window_left": 3, "window_right": 2}, {"window": (3, 2)}),
        ({"softcap": 5.0, "scale": 0.25}, {"softcap": 5.0, "scale": 0.25}),
        ({"softcap": 5, "scale": "0.25"}, {"softcap": 5.0, "scale": 0.25}),
    ],
)
def test_parameters(client, parameters, options):
    q, k, v = qkv()
    check(client.infer(MODEL, inputs(q, k, v), parameters=parameters), q, k, v, **options)


def test_priority_and_timeout(client):
    q, k, v = qkv()
    check(client.infer(MODEL, inputs(q, k, v), priority=1, timeout=60_000_000), q, k, v)
    with expect_error("DEADLINE_EXCEEDED"):
        client.infer(MODEL, inputs(q, k, v), timeout=1)
    with expect_error("INVALID_ARGUMENT", "priority", "10"):
        client.infer(MODEL, inputs(q, k, v), priority=10)


def test_a_key_without_heads_is_one_head(client):
    q, k, v = qkv(kv_heads=1)
    check(client.infer(MODEL, inputs(q, k[:, 0], v[:, 0])), q, k, v)


def test_packed_sequences(client):
    q_lens, kv_lens = [5, 0, 17], [9, 4, 30]
    q = normal(1, sum(q_lens), 4, 32)
    k, v = (normal(seed, sum(kv_lens), 2, 32) for seed in (2, 3))
    ends = [np.cumsum([0, *lens]) for lens in (q_lens, kv_lens)]
    packed = [tensor("CU_SEQLENS_Q", ends[0]), tensor("CU_SEQLENS_K", ends[1]), *inputs(q, k, v)]
    o = client.infer(MODEL, packed, parameters={"causal": True}).as_numpy("O")
    for i in range(len(q_lens)):
        one_q = q[ends[0][i] : ends[0][i + 1]].swapaxes(0, 1)[None]
        one_k, one_v = (x[ends[1][i] : ends[1][i + 1]].swapaxes(0, 1)[None] for x in (k, v))
        want, _ = attention(one_q, one_k, one_v, causal="bottom-right")
        check_o(o[ends[0][i] : ends[0][i + 1]].swapaxes(0, 1)[None], q, want)


def test_sixteen_megabytes_and_back(client):
    """tritonclient's messages have no limit of their own; gRPC's default would be 4 MB."""
    q, k, v = qkv(batch=1, q_heads=8, kv_heads=8, q_len=8192, kv_len=8, head_dim=64)
    check(client.infer(MODEL, inputs(q, k, v), outputs=outputs("O")), q, k, v)


@pytest.mark.parametrize(
    "change, code, words",
    [
        (dict(model_name="attentoin"), "NOT_FOUND", ["attentoin", "attention"]),
        (dict(model_version="2"), "NOT_FOUND", ["2", "1"]),
        (dict(parameters={"casual": True}), "INVALID_ARGUMENT", ["casual"]),
        (dict(parameters={"scale": -1.0}), "INVALID_ARGUMENT", ["scale", "-1"]),
        (dict(parameters={"window_left": -3}), "INVALID_ARGUMENT", ["window_left", "-3"]),
        (dict(outputs=outputs("P")), "INVALID_ARGUMENT", ["P"]),
        (dict(sequence_id=7, sequence_start=True), "INVALID_ARGUMENT", ["sequence"]),
        (dict(outputs=[triton.InferRequestedOutput("O", class_count=3)]), "INVALID_ARGUMENT", ["classification"]),
    ],
)
def test_bad_requests_are_named(client, change, code, words):
    call = dict(model_name=MODEL, inputs=inputs(*qkv())) | change
    with expect_error(code, *words):
        client.infer(**call)
    # The next call works.
    q, k, v = qkv()
    check(client.infer(MODEL, inputs(q, k, v)), q, k, v)


def test_bad_tensors_are_named(client):
    q, k, v = qkv()
    for tensors, words in [
        ([tensor("Q", q), tensor("K", k)], ["V"]),
        ([*inputs(q, k, v), tensor("Q", q)], ["Q"]),
        ([*inputs(q, k, v), tensor("W", q)], ["W"]),
        (inputs(q, k, v[:, :, 1:]), ["V"]),
        (inputs(q, k, v.astype(np.float16)), ["V", "FP16", "FP32"]),
        (inputs(q[:, :5], k, v), ["5", "2"]),
    ]:
        with expect_error("INVALID_ARGUMENT", *words):
            client.infer(MODEL, tensors)


@pytest.mark.parametrize("call", ["load_model", "unload_model"])
def test_what_is_not_there_is_unimplemented_with_a_reason(client, call):
    with expect_error("UNIMPLEMENTED", "\\w{4,}"):
        getattr(client, call)(MODEL)


def test_settings_are_unimplemented_with_a_reason(client):
    for call in (client.get_trace_settings, client.get_log_settings, lambda: client.update_log_settings({"log_info": True})):
        with expect_error("UNIMPLEMENTED", "\\w{4,}"):
            call()


def test_many_calls_at_once(client):
    problems = [qkv(q_len=5 + i, seed=i) for i in range(40)]
    done = queue.Queue()
    for i, problem in enumerate(problems):
        client.async_infer(
            MODEL, inputs(*problem), lambda result, error, i=i: done.put((i, result, error)), request_id=str(i)
        )
    seen = set()
    for _ in problems:
        i, result, error = done.get(timeout=PATIENCE_S)
        assert error is None, error
        assert result.get_response().id == str(i)
        check(result, *problems[i])
        seen.add(i)
    assert seen == set(range(len(problems)))


def test_an_async_call_can_be_cancelled(client, server):
    """One of seconds; the server stops it, and serves on."""
    q, k, v = qkv(batch=1, q_heads=4, kv_heads=4, q_len=20_000, kv_len=20_000, head_dim=64)
    done = queue.Queue()
    call = client.async_infer(MODEL, inputs(q, k, v), lambda result, error: done.put(error), outputs=outputs("O"))
    call.cancel()
    error = done.get(timeout=PATIENCE_S)
    assert re.search("CANCELLED", str(error.status()))
    q, k, v = qkv()
    check(client.infer(MODEL, inputs(q, k, v)), q, k, v)


def statistics(client):
    [model] = client.get_inference_statistics(MODEL).model_stats
    assert model.name == MODEL and model.version == "1"
    return model


def test_statistics_count_every_inference(client):
    q, k, v = qkv()
    client.infer(MODEL, inputs(q, k, v))
    before = statistics(client)
    for _ in range(5):
        client.infer(MODEL, inputs(q, k, v))
    with expect_error("INVALID_ARGUMENT"):
        client.infer(MODEL, inputs(q, k, v[:, :, 1:]))
    after = statistics(client)
    assert after.inference_count - before.inference_count == 5
    assert after.execution_count - before.execution_count == 5  # one at a time
    assert after.last_inference >= before.last_inference > 0
    stats, earlier = after.inference_stats, before.inference_stats
    assert stats.success.count - earlier.success.count == 5
    assert stats.fail.count - earlier.fail.count == 1
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(stats, part).count - getattr(earlier, part).count == 5, part
    spent = stats.success.ns - earlier.success.ns
    parts = sum(getattr(stats, p).ns - getattr(earlier, p).ns for p in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < parts <= spent
    assert sum(b.compute_infer.count for b in after.batch_stats) == after.execution_count
    with expect_error("NOT_FOUND", "resnet"):
        client.get_inference_statistics("resnet")
