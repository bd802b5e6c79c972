"""libattnd_kernels_c.so on torch tensors: kernels/attnd_kernels.h, field by field."""

import ctypes
import math

UNBOUNDED = 1 << 60
CAUSAL = {None: 0, "top_left": 1, "bottom_right": 2}


class Strides(ctypes.Structure):
    _fields_ = [("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]


class Task(ctypes.Structure):
    _fields_ = [
        ("struct_size_bytes", ctypes.c_uint64), ("dtype", ctypes.c_int32), ("causal", ctypes.c_int32),
        ("batch", ctypes.c_int64), ("q_heads", ctypes.c_int64), ("kv_heads", ctypes.c_int64),
        ("q_len", ctypes.c_int64), ("kv_len", ctypes.c_int64), ("head_dim", ctypes.c_int64),
        ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float),
        ("q", ctypes.c_void_p), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p), ("o", ctypes.c_void_p),
        ("q_strides", Strides), ("k_strides", Strides), ("v_strides", Strides), ("o_strides", Strides),
        ("alibi_slopes", ctypes.c_void_p), ("lse", ctypes.c_void_p),
        ("lse_batch_stride", ctypes.c_int64), ("lse_head_stride", ctypes.c_int64),
    ]


class Kernels:
    """A backend; run() takes tasks made by task() and a raw stream handle."""

    def __init__(self, library, backend):
        self.lib = ctypes.CDLL(library)
        self.handle = ctypes.c_void_p()
        error = ctypes.create_string_buffer(1024)
        code = self.lib.attnd_create(backend.encode(), 0, ctypes.byref(self.handle), error, len(error))
        if code:
            raise RuntimeError(f"attnd_create: {code}: {error.value.decode()}")

    def task(self, q, k, v, o, lse=None, causal=None, window=(None, None), softcap=0.0, scale=None, alibi=None):
        """Tensors are [batch, heads, len, head_dim] views with adjacent row elements."""
        import torch

        t = Task()
        t.struct_size_bytes = ctypes.sizeof(Task)
        t.dtype = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}[q.dtype]
        t.causal = CAUSAL[causal]
        t.batch, t.q_heads, t.q_len, t.head_dim = q.shape
        t.kv_heads, t.kv_len = k.shape[1], k.shape[2]
        t.window_left, t.window_right = (UNBOUNDED if w is None else w for w in window)
        t.scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
        t.softcap = softcap
        for name, tensor in (("q", q), ("k", k), ("v", v), ("o", o)):
            setattr(t, name, tensor.data_ptr())
            setattr(t, name + "_strides", Strides(*tensor.stride()[:3]))
        if lse is not None:
            t.lse, t.lse_batch_stride, t.lse_head_stride = lse.data_ptr(), *lse.stride()[:2]
        if alibi is not None:
            t.alibi_slopes = alibi.data_ptr()
        return t

    def run(self, tasks, stream=0):
        array = (Task * len(tasks))(*tasks)
        error = ctypes.create_string_buffer(1024)
        code = self.lib.attnd_run(self.handle, array, ctypes.c_int64(len(tasks)), ctypes.c_void_p(stream), error, len(error))
        if code:
            raise RuntimeError(f"attnd_run: {code}: {error.value.decode()}")
