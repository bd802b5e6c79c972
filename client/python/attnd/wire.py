"""Problems to messages of attnd.v1 and answers back: protobuf never holds a tensor's bytes."""

from __future__ import annotations

import functools
import operator
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from google.protobuf.message import DecodeError

from attnd import arrays
from attnd.arrays import Tensor
from attnd.errors import Internal, InvalidArgument
from attnd.problem import Problem, Result
from attnd.v1 import attnd_pb2 as pb

# Protobuf's own limit, which every reader of the message shares.
MAX_MESSAGE_BYTES = 2**31 - 1
CHUNK_BYTES = 1 << 20
# A chunk, and what stands before it.
MAX_STREAM_MESSAGE_BYTES = CHUNK_BYTES + 64

_LAYOUTS = {"bhsd": pb.LAYOUT_BHSD, "bshd": pb.LAYOUT_BSHD, "thd": pb.LAYOUT_THD}
_CAUSAL = {
    False: pb.CAUSAL_ALIGNMENT_UNSPECIFIED,
    True: pb.CAUSAL_ALIGNMENT_BOTTOM_RIGHT,
    "bottom-right": pb.CAUSAL_ALIGNMENT_BOTTOM_RIGHT,
    "top-left": pb.CAUSAL_ALIGNMENT_TOP_LEFT,
}


_PAYLOADS = {2: pb.OPERAND_O, 3: pb.OPERAND_LSE}  # of a ComputeResponse


class Head:
    """All of a problem but its bytes, and where they are. Nobody changes it: other problems may share it."""

    __slots__ = ("header", "lse_shape", "message", "native")

    def __init__(self, header: Any):
        self.header = header  # pb.ComputeHeader
        self.lse_shape = _lse_shape(header)  # None: not wanted
        self.message = encode_header(header)  # a ComputeRequest without payload, or a stream's first message: they look the same
        self.native: Any = None  # what native.py makes of it


class Request(NamedTuple):
    """A problem whose arguments have been read."""

    inputs: Tuple[Tensor, Tensor, Tensor]
    head: Head
    out: Any  # the caller's object; None: a new array
    out_array: Optional[np.ndarray]

    @property
    def header(self) -> Any:
        return self.head.header

    @property
    def input_bytes(self) -> int:
        return sum(tensor.array.nbytes for tensor in self.inputs)

    @property
    def lse_shape(self) -> Optional[Tuple[int, ...]]:
        return self.head.lse_shape


def _lse_shape(header: Any) -> Optional[Tuple[int, ...]]:
    shape = tuple(header.q.shape)
    if not header.want_lse or len(shape) < 3:
        return None  # of another rank: the server refuses it
    if header.layout == pb.LAYOUT_THD:
        return (shape[1], shape[0])
    return shape[:3] if header.layout == pb.LAYOUT_BHSD else (shape[0], shape[2], shape[1])


def _choice(name: str, value: Any, choices: Mapping[Any, Any]) -> Any:
    try:
        return choices[value]
    except (KeyError, TypeError):
        known = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgument(f"{name} is {value!r}, must be one of {known}", field=name) from None


def _set_window(header: Any, window: Any) -> None:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window is {window!r}, must be (left, right), None for an open side") from None
    header.window.SetInParent()
    if left is not None:
        header.window.left = left
    if right is not None:
        header.window.right = right


def _set(header: Any, name: str, value: Any) -> None:
    if name == "window":
        _set_window(header, value)
    elif name in ("alibi_slopes", "cu_seqlens_q", "cu_seqlens_kv"):
        getattr(header, name).extend(np.asarray(value).tolist())
    else:
        setattr(header, name, value)


# Arguments -> fields of the header that take them as they are.
_OPTIONS = {
    "window": "window", "scale": "scale", "softcap": "softcap", "alibi_slopes": "alibi_slopes",
    "cu_seqlens_q": "cu_seqlens_q", "cu_seqlens_k": "cu_seqlens_kv", "lse": "want_lse", "priority": "priority",
}  # fmt: skip


_options_of = operator.attrgetter(*_OPTIONS)


def _head_of(tensors: Tuple[Tuple[str, Tuple[int, ...]], ...], layout: Any, causal: Any, *options: Any) -> Head:
    """`tensors` are (dtype, shape) of q, k and v; `options` the values of _OPTIONS, in order."""
    header = pb.ComputeHeader(layout=_choice("layout", layout, _LAYOUTS), causal=_choice("causal", causal, _CAUSAL))
    for spec, (dtype, shape) in zip((header.q, header.k, header.v), tensors):
        spec.dtype = arrays.WIRE_DTYPES[dtype]
        spec.shape.extend(shape)
    for (argument, name), value in zip(_OPTIONS.items(), options):
        if value is None:
            continue
        try:
            _set(header, name, value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{argument}: {error}", field=argument) from None
    return Head(header)


# A steady load has the same few heads over and over.
_cached_head_of = functools.lru_cache(maxsize=256)(_head_of)


_PLAIN = {type(None), bool, int, float, str}


def _is_plain(values: Tuple[Any, ...]) -> bool:
    """Whether equal ones are the same for good: a list's entries change, and a tensor is equal to itself alone."""
    return _PLAIN.issuperset(map(type, values)) or all(
        value is None or isinstance(value, (int, float, str)) or (type(value) is tuple and _is_plain(value))
        for value in values
    )


def read(problem: Problem) -> Request:
    """InvalidArgument for what cannot be sent; whether it makes sense, the server says."""
    q, k, v = arrays.take("q", problem.q), arrays.take("k", problem.k), arrays.take("v", problem.v)
    tensors = ((q.dtype, q.array.shape), (k.dtype, k.array.shape), (v.dtype, v.array.shape))
    options = (problem.layout, problem.causal, *_options_of(problem))
    head = (_cached_head_of if _is_plain(options) else _head_of)(tensors, *options)
    if problem.out is not None:
        return Request((q, k, v), head, problem.out, arrays.take_out(problem.out, q))
    arrays.check_output(q)
    return Request((q, k, v), head, None, None)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


@functools.lru_cache(maxsize=1024)  # a steady load has the same sizes over and over
def _frame(field: int, size_bytes: int) -> bytes:
    """What stands before a length-delimited field's bytes."""
    return _varint(field << 3 | 2) + _varint(size_bytes)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's bytes, dense; copied only where they are not."""
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data


def encode_header(header: Any) -> bytes:
    """Head.message for a header."""
    data = header.SerializeToString()
    return _frame(1, len(data)) + bytes(data)


def encode_unary(request: Request) -> bytes:
    """A ComputeRequest: each byte of a tensor copied once."""
    parts: List[Any] = [request.head.message]
    for field, tensor in enumerate(request.inputs, start=2):
        parts += (_frame(field, tensor.array.nbytes), np.ascontiguousarray(tensor.array))
    return b"".join(parts)


def encode_stream(request: Request) -> Iterator[bytes]:
    """The messages of a ComputeStream, each made when it is asked for."""
    yield request.head.message
    for operand, tensor in enumerate(request.inputs, start=pb.OPERAND_Q):
        payload = _bytes_of(tensor)
        for offset in range(0, len(payload), CHUNK_BYTES):
            data = payload[offset : offset + CHUNK_BYTES]
            inside = b"".join((b"\x08", _varint(operand), b"\x10", _varint(offset), _frame(3, len(data))))
            yield b"".join((_frame(2, len(inside) + len(data)), inside, data))


def _read_varint(message: memoryview, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(message: memoryview) -> Iterator[Tuple[int, Any]]:
    """(number, value) of a message's fields: integers, and views of what has a length."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value: Any
        if key & 7 == 2:
            size, at = _read_varint(message, at)
            value = message[at : at + size]
            at += size
            if at > len(message):
                raise IndexError("a field passes the end of its message")
        elif key & 7 == 0:
            value, at = _read_varint(message, at)
        else:  # none of ours; a newer server's
            size = {1: 8, 5: 4}[key & 7]
            value, at = message[at : at + size], at + size
        yield key >> 3, value


class Outputs:
    """Dense arrays for O and LSE: the caller's own `out` where it can be."""

    def __init__(self, request: Request):
        self._request = request
        q, out, lse_shape = request.inputs[0], request.out_array, request.lse_shape
        is_dense = out is not None and out.flags.c_contiguous
        self.o: np.ndarray = out if out is not None and is_dense else np.empty(q.array.shape, q.array.dtype)
        self.lse = None if lse_shape is None else np.empty(lse_shape, np.float32)

    def result(self, tries: int, account: Any) -> Result:
        """Once they are filled."""
        request = self._request
        o = request.out
        if o is None:
            o = arrays.presented(self.o, request.inputs[0].dtype)
        elif request.out_array is not None and request.out_array is not self.o:
            request.out_array[...] = self.o
        return Result(o, self.lse, tries, account)


class Answer(Outputs):
    """O and LSE as they come, each byte copied once to where it is to stay. Internal for what does not fit the request."""

    def __init__(self, request: Request, in_region: bool = False):
        super().__init__(request)
        self._q = request.inputs[0]
        self._header: Any = None
        self._rooms: Dict[int, np.ndarray] = {}  # the bytes of each operand
        self._filled: Dict[int, List[Tuple[int, int]]] = {}  # from byte to byte, in the order in which they came
        if in_region:
            return
        for operand, array in ((pb.OPERAND_O, self.o), (pb.OPERAND_LSE, self.lse)):
            if array is not None:
                self._rooms[operand] = array.reshape(-1).view(np.uint8)
                self._filled[operand] = []

    def take_unary(self, message: bytes) -> None:
        self._guard(self._take_unary, message)

    def take_streamed(self, message: bytes) -> None:
        self._guard(self._take_streamed, message)

    def _guard(self, take: Any, message: bytes) -> None:
        try:
            take(memoryview(message))
        except (IndexError, KeyError, ValueError, DecodeError) as error:
            broken = Internal(f"answer: {error}")
            broken.from_attnd = True  # another try would give the same
            raise broken from error

    def _take_unary(self, message: memoryview) -> None:
        for field, value in _fields(message):
            if field == 1:
                self._take_header(value)
            elif field in _PAYLOADS and len(value) > 0:
                self._put(_PAYLOADS[field], 0, value)

    def _take_streamed(self, message: memoryview) -> None:
        for field, value in _fields(message):
            if field == 1:
                self._take_header(value)
            elif field == 2:
                chunk = {1: 0, 2: 0, 3: b"", **dict(_fields(value))}
                self._put(chunk[1], chunk[2], chunk[3])

    def _take_header(self, data: memoryview) -> None:
        header = pb.ComputeResponseHeader.FromString(bytes(data))
        want = (self._q.wire_dtype, list(self._q.array.shape))
        if (header.o.dtype, list(header.o.shape)) != want:
            raise ValueError(f"o is {list(header.o.shape)} of dtype {header.o.dtype}, asked for {want[1]} of {want[0]}")
        if self.lse is not None and tuple(header.lse.shape) != self.lse.shape:
            raise ValueError(f"lse is {list(header.lse.shape)}, asked for {list(self.lse.shape)}")
        self._header = header

    def _put(self, operand: int, offset: int, data: Any) -> None:
        room = self._rooms[operand]
        if offset + len(data) > len(room):
            raise ValueError(f"bytes {offset} to {offset + len(data)} of operand {operand}, which has {len(room)}")
        room[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        self._filled[operand].append((offset, offset + len(data)))

    def checked_result(self, tries: int) -> Result:
        """After the last message."""
        if self._header is None:
            raise Internal("answer: it has no header")
        for operand, pieces in self._filled.items():
            end = 0
            for begin, piece_end in sorted(pieces):
                end = piece_end if begin == end else -1
            if end != len(self._rooms[operand]):
                raise Internal(f"answer: the pieces of operand {operand} are not all of it, once")
        return self.result(tries, self._header)
