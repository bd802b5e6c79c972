"""What somebody with gRPC and nothing of ours can do: ask the server by reflection what it takes, call it, read the answer.

No file of the project's API is read, no generated code used: the reflection service's own messages are written down
here, as its public definition (grpc/reflection/v1alpha/reflection.proto) has them.
"""

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from reference import BOUND, attention, rel_error

NO_LIMIT = [("grpc.max_receive_message_length", -1)]
REFLECTION = "grpc.reflection.v1alpha"
# message -> field -> (number, type); a type that is no scalar's is a message's.
REFLECTION_MESSAGES = {
    "ServerReflectionRequest": {"file_containing_symbol": (4, "string"), "list_services": (7, "string")},
    "ServerReflectionResponse": {
        "file_descriptor_response": (4, "FileDescriptorResponse"),
        "list_services_response": (6, "ListServiceResponse"),
    },
    "FileDescriptorResponse": {"file_descriptor_proto": (1, "repeated bytes")},
    "ListServiceResponse": {"service": (1, "repeated ServiceResponse")},
    "ServiceResponse": {"name": (1, "string")},
}  # fmt: skip


def message_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def reflection_messages():
    """(request, response) classes."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="foreign/reflection.proto", package=REFLECTION, syntax="proto3")
    for name, fields in REFLECTION_MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            *repeated, kind = kind.split()
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            scalars = {"string": field_type.TYPE_STRING, "bytes": field_type.TYPE_BYTES}
            field.type = scalars.get(kind, field_type.TYPE_MESSAGE)
            if field.type == field_type.TYPE_MESSAGE:
                field.type_name = f".{REFLECTION}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return tuple(message_class(pool, f"{REFLECTION}.ServerReflection{name}") for name in ("Request", "Response"))


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address, options=NO_LIMIT) as channel:
        yield channel


@pytest.fixture(scope="module")
def ask(channel):
    """One question to the reflection service."""
    request, response = reflection_messages()
    method = channel.stream_stream(
        f"/{REFLECTION}.ServerReflection/ServerReflectionInfo", request.SerializeToString, response.FromString
    )
    return lambda **question: next(iter(method(iter([request(**question)]), timeout=60)))


@pytest.fixture(scope="module")
def pool(ask):
    """What the server says of its service."""
    pool = descriptor_pool.DescriptorPool()
    for data in ask(file_containing_symbol="attnd.v1.AttentionService").file_descriptor_response.file_descriptor_proto:
        pool.AddSerializedFile(data)
    return pool


def test_the_service_is_listed(ask):
    names = [service.name for service in ask(list_services="*").list_services_response.service]
    assert "attnd.v1.AttentionService" in names and "grpc.health.v1.Health" in names


def method_of(channel, pool, name):
    """(callable, request class), all of it from the descriptor."""
    method = pool.FindServiceByName("attnd.v1.AttentionService").FindMethodByName(name)
    request, response = (message_class(pool, kind.full_name) for kind in (method.input_type, method.output_type))
    path = f"/attnd.v1.AttentionService/{name}"
    return channel.unary_unary(path, request.SerializeToString, response.FromString), request


def test_compute(channel, pool):
    compute, request_class = method_of(channel, pool, "Compute")
    enums = request_class.DESCRIPTOR.file.enum_types_by_name
    random = np.random.default_rng(1)
    shapes = ((2, 4, 7, 24), (2, 2, 12, 24), (2, 2, 12, 24))
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    request = request_class(q=q.tobytes(), k=k.tobytes(), v=v.tobytes())
    for name, array in (("q", q), ("k", k), ("v", v)):
        spec = getattr(request.header, name)
        spec.dtype = enums["DataType"].values_by_name["DATA_TYPE_FLOAT32"].number
        spec.shape.extend(array.shape)
    request.header.causal = enums["CausalAlignment"].values_by_name["CAUSAL_ALIGNMENT_TOP_LEFT"].number
    request.header.window.left = 3
    request.header.want_lse = True

    response = compute(request, timeout=60)
    assert list(response.header.o.shape) == [2, 4, 7, 24] and list(response.header.lse.shape) == [2, 4, 7]
    want_o, want_lse = attention(q, k, v, causal="top-left", window=(3, None))
    assert rel_error(np.frombuffer(response.o, np.float32).reshape(q.shape), want_o) <= BOUND["float32"]
    assert rel_error(np.frombuffer(response.lse, np.float32).reshape(2, 4, 7), want_lse) <= 2e-6


def test_server_info(channel, pool):
    get_server_info, request_class = method_of(channel, pool, "GetServerInfo")
    info = get_server_info(request_class(), timeout=60)
    assert info.instance_id and info.limits.max_head_dim == 256
