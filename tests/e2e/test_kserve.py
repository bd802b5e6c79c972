"""The Open Inference Protocol over the network, by messages that protoc wrote for Python: infer, stream, metadata, statistics."""

import importlib
import subprocess
import sys

import grpc
import numpy as np
import pytest

from attnd_process import ROOT
from reference import BOUND, attention, rel_error

SERVICE = "/inference.GRPCInferenceService/"
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
DATATYPES = {"float32": "FP32", "float16": "FP16", "int32": "INT32", "int64": "INT64"}
PATIENCE_S = 60


@pytest.fixture(scope="module")
def pb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proto")
    names = ["inference/model_config.proto", "inference/grpc_service.proto"]
    subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}", *names], check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module("inference.grpc_service_pb2")


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address, options=NO_LIMIT) as channel:
        yield channel


def call(pb, channel, method, request, response):
    stub = channel.unary_unary(SERVICE + method, type(request).SerializeToString, response.FromString)
    return stub(request, timeout=PATIENCE_S)


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def infer_request(pb, arrays, parameters=(), outputs=(), request_id=""):
    request = pb.ModelInferRequest(model_name="attention", id=request_id)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    for name, (kind, value) in dict(parameters).items():
        setattr(request.parameters[name], kind, value)
    return request


def tensor(response, name, dtype):
    """The output of this name; its place among the outputs is that of its bytes among the raw contents."""
    index = [output.name for output in response.outputs].index(name)
    return np.frombuffer(response.raw_output_contents[index], dtype).reshape(response.outputs[index].shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_infer(pb, channel, dtype):
    q, k, v = (normal(i, *shape, dtype=dtype) for i, shape in enumerate([(2, 6, 31, 48), (2, 2, 77, 48), (2, 2, 77, 48)]))
    parameters = {"causal": ("bool_param", True), "window_left": ("int64_param", 50), "softcap": ("double_param", 20.0)}
    request = infer_request(pb, {"V": v, "Q": q, "K": k}, parameters, ["LSE", "O"], "from afar")
    response = call(pb, channel, "ModelInfer", request, pb.ModelInferResponse)
    assert response.model_name == "attention" and response.model_version == "1" and response.id == "from afar"
    assert response.parameters["kernel"].string_param.startswith("attn_fwd_")
    want_o, want_lse = attention(q, k, v, causal="bottom-right", window=(50, None), softcap=20.0)
    assert rel_error(tensor(response, "O", dtype), want_o) <= BOUND[dtype]
    assert rel_error(tensor(response, "LSE", np.float32), want_lse) <= 2e-6


def test_packed_sequences(pb, channel):
    q_lens, kv_lens, heads, kv_heads, dim = [3, 0, 17], [9, 4, 17], 4, 2, 32
    ends = {
        name: np.concatenate([[0], np.cumsum(lens)]).astype(dtype)
        for name, lens, dtype in (("CU_SEQLENS_Q", q_lens, np.int32), ("CU_SEQLENS_K", kv_lens, np.int64))
    }
    q, k, v = (normal(i, sum(lens), h, dim) for i, (lens, h) in enumerate([(q_lens, heads), (kv_lens, kv_heads), (kv_lens, kv_heads)]))
    request = infer_request(pb, {"Q": q, "K": k, "V": v, **ends}, {"causal": ("string_param", "top_left")}, ["O"])
    o = tensor(call(pb, channel, "ModelInfer", request, pb.ModelInferResponse), "O", np.float32)
    for i in (0, 2):
        rows, keys = slice(*ends["CU_SEQLENS_Q"][i : i + 2]), slice(*ends["CU_SEQLENS_K"][i : i + 2])
        one = [x.transpose(1, 0, 2)[None] for x in (q[rows], k[keys], v[keys])]
        assert rel_error(o[rows].transpose(1, 0, 2)[None], attention(*one, causal="top-left")[0]) <= BOUND["float32"]


def test_contents_as_lists(pb, channel):
    q = normal(1, 1, 1, 2, 4)
    request = infer_request(pb, {"Q": q, "K": q, "V": q}, outputs=["O"])
    del request.raw_input_contents[:]
    for entry in request.inputs:
        entry.contents.fp32_contents.extend(q.ravel())
    o = tensor(call(pb, channel, "ModelInfer", request, pb.ModelInferResponse), "O", np.float32)
    assert rel_error(o, attention(q, q, q)[0]) <= BOUND["float32"]


def test_a_stream(pb, channel):
    q, k, v = normal(1, 1, 2, 5, 16), normal(2, 1, 1, 9, 16), normal(3, 1, 1, 9, 16)
    requests = [infer_request(pb, {"Q": q, "K": k, "V": v}, outputs=["O"], request_id=str(i)) for i in range(30)]
    requests[7].model_name = "resnet"
    stub = channel.stream_stream(
        SERVICE + "ModelStreamInfer", pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
    )
    responses = list(stub(iter(requests), timeout=PATIENCE_S))
    assert [response.infer_response.id for response in responses] == [str(i) for i in range(30)]
    for i, response in enumerate(responses):
        if i == 7:
            assert response.error_message.startswith("NOT_FOUND: ") and "resnet" in response.error_message
        else:
            assert response.error_message == ""
            assert rel_error(tensor(response.infer_response, "O", np.float32), attention(q, k, v)[0]) <= BOUND["float32"]


def test_an_error_names_the_input(pb, channel):
    q = normal(1, 1, 2, 5, 16)
    with pytest.raises(grpc.RpcError) as error:
        call(pb, channel, "ModelInfer", infer_request(pb, {"Q": q, "K": q, "V": q[:, :1]}), pb.ModelInferResponse)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "K and V" in error.value.details() and "[1, 1, 5, 16]" in error.value.details()


def test_what_is_told_of_server_and_model(pb, channel):
    assert call(pb, channel, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert call(pb, channel, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    assert call(pb, channel, "ModelReady", pb.ModelReadyRequest(name="attention"), pb.ModelReadyResponse).ready
    assert call(pb, channel, "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse).name == "attnd"
    metadata = call(pb, channel, "ModelMetadata", pb.ModelMetadataRequest(name="attention"), pb.ModelMetadataResponse)
    assert [x.name for x in metadata.inputs] == ["Q", "K", "V"] and [x.name for x in metadata.outputs] == ["O", "LSE"]
    config = call(pb, channel, "ModelConfig", pb.ModelConfigRequest(name="attention"), pb.ModelConfigResponse).config
    assert config.max_batch_size == 0 and config.name == "attention"
    index = call(pb, channel, "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
    assert [(model.name, model.state) for model in index.models] == [("attention", "READY")]


def test_statistics_count_each_request_once(pb, channel):
    def statistics():
        request = pb.ModelStatisticsRequest(name="attention")
        return call(pb, channel, "ModelStatistics", request, pb.ModelStatisticsResponse).model_stats[0]

    before = statistics()
    q = normal(1, 1, 2, 5, 16)
    request = infer_request(pb, {"Q": q, "K": q, "V": q})
    for _ in range(5):
        call(pb, channel, "ModelInfer", request, pb.ModelInferResponse)
    after = statistics()
    assert after.inference_count - before.inference_count == 5
    assert after.inference_stats.success.count - before.inference_stats.success.count == 5
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.last_inference >= before.last_inference > 0
    assert sum(batch.batch_size * batch.compute_infer.count for batch in after.batch_stats) >= after.inference_count
