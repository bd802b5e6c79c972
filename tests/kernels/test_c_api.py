"""libattnd_kernels_c.so from Python by ctypes, on numpy arrays, against float64; and what it exports."""

import ctypes
import os
import pathlib
import subprocess

import numpy as np
import pytest

LIBRARY = pathlib.Path(os.environ["ATTND_BUILD_DIR"]) / "lib" / "libattnd_kernels_c.so"
UNBOUNDED = 1 << 60
F32, F16 = 0, 1
NONE, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row")]


class Task(ctypes.Structure):
    _fields_ = (
        [("struct_size_bytes", ctypes.c_uint64), ("dtype", ctypes.c_int32), ("causal", ctypes.c_int32)]
        + [(name, ctypes.c_int64) for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len",
                                               "head_dim", "window_left", "window_right")]
        + [("scale", ctypes.c_float), ("softcap", ctypes.c_float)]
        + [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o")]
        + [(name, Strides) for name in ("q_strides", "k_strides", "v_strides", "o_strides")]
        + [("alibi_slopes", ctypes.c_void_p), ("lse", ctypes.c_void_p),
           ("lse_batch_stride", ctypes.c_int64), ("lse_head_stride", ctypes.c_int64)])


def load():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.attnd_version.restype = ctypes.c_char_p
    lib.attnd_backend_name.restype = ctypes.c_char_p
    lib.attnd_backend_name.argtypes = [ctypes.c_void_p]
    lib.attnd_destroy.argtypes = [ctypes.c_void_p]
    lib.attnd_task_init.argtypes = [ctypes.POINTER(Task), ctypes.c_uint64]
    lib.attnd_create.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p),
                                 ctypes.c_char_p, ctypes.c_size_t]
    lib.attnd_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(Task), ctypes.c_int64, ctypes.c_void_p,
                              ctypes.c_char_p, ctypes.c_size_t]
    return lib


@pytest.fixture(scope="module")
def lib():
    return load()


@pytest.fixture(params=[None, b"cpu_portable", b"reference"], ids=["best", "portable", "reference"])
def handle(lib, request):
    error = ctypes.create_string_buffer(256)
    handle = ctypes.c_void_p()
    assert lib.attnd_create(request.param, 2, ctypes.byref(handle), error, len(error)) == 0, error.value
    yield handle
    lib.attnd_destroy(handle)


def strides_of(array):
    """Of [batch, heads, len, head_dim], as a view with any order of axes."""
    batch, head, row, column = (stride // array.itemsize for stride in array.strides)
    assert column == 1
    return Strides(batch, head, row)


def make_task(lib, q, k, v, o, lse, **options):
    task = Task()
    lib.attnd_task_init(task, ctypes.sizeof(Task))
    task.dtype = {np.dtype(np.float32): F32, np.dtype(np.float16): F16}[q.dtype]
    task.batch, task.q_heads, task.q_len, task.head_dim = q.shape
    task.kv_heads, task.kv_len = k.shape[1:3]
    for name, array in (("q", q), ("k", k), ("v", v), ("o", o)):
        setattr(task, name, array.ctypes.data)
        setattr(task, name + "_strides", strides_of(array))
    task.lse = lse.ctypes.data
    task.lse_batch_stride, task.lse_head_stride = lse.shape[1] * lse.shape[2], lse.shape[2]
    for name, value in options.items():
        setattr(task, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
    return task


def expected(q, k, v, causal=NONE, window_left=UNBOUNDED, softcap=0.0, alibi_slopes=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    x = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if softcap:
        x = softcap * np.tanh(x / softcap)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
    aligned = i + k.shape[2] - q.shape[2]
    if alibi_slopes is not None:
        x -= alibi_slopes[:, None, None].astype(np.float64) * np.abs(aligned - j)
    visible = np.ones_like(x, dtype=bool)
    if causal:
        visible &= j <= (i if causal == TOP_LEFT else aligned)
    if window_left < UNBOUNDED:
        visible &= j >= aligned - window_left
    weights = np.where(visible, np.exp(x), 0.0)
    total = weights.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0])
    return weights @ v / np.where(total == 0, 1, total), lse


CASES = {
    "full": {},
    "causal": dict(causal=BOTTOM_RIGHT),
    "top_left": dict(causal=TOP_LEFT),
    "window": dict(causal=BOTTOM_RIGHT, window_left=17),
    "softcap": dict(softcap=3.0),
    "alibi": dict(alibi_slopes=np.array([0.5, 0.25, 0.125, 0.0625], np.float32)),
}


def draw(rng, dtype, q_len=70, kv_len=150, head_dim=40):
    """Q dense BHSD; K and V are views of [batch, len, heads, head_dim]."""
    q = rng.standard_normal((2, 4, q_len, head_dim)).astype(dtype)
    k, v = (rng.standard_normal((2, kv_len, 2, head_dim)).astype(dtype).transpose(0, 2, 1, 3)
            for _ in range(2))
    return q, k, v, np.full_like(q, 99), np.full(q.shape[:3], 99, np.float32)


@pytest.mark.parametrize("dtype,bound", [(np.float32, 2e-6), (np.float16, 4.5e-4)], ids=["f32", "f16"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64(lib, handle, case, dtype, bound):
    q, k, v, o, lse = draw(np.random.default_rng(1), dtype)
    task = make_task(lib, q, k, v, o, lse, **CASES[case])
    error = ctypes.create_string_buffer(256)
    assert lib.attnd_run(handle, task, 1, None, error, len(error)) == 0, error.value
    want_o, want_lse = expected(q, k, v, **CASES[case])
    assert np.linalg.norm(o - want_o) <= bound * np.linalg.norm(want_o)
    assert np.allclose(lse, want_lse, rtol=0, atol=1e-5)


def test_one_call_takes_different_tasks(lib, handle):
    rng = np.random.default_rng(2)
    problems = [draw(rng, dtype, q_len, kv_len, head_dim) for dtype, q_len, kv_len, head_dim in
                [(np.float32, 1, 300, 64), (np.float16, 130, 5, 8), (np.float32, 33, 129, 128)]]
    tasks = (Task * 3)(*(make_task(lib, *problem) for problem in problems))
    error = ctypes.create_string_buffer(256)
    assert lib.attnd_run(handle, tasks, 3, None, error, len(error)) == 0, error.value
    for q, k, v, o, _ in problems:
        want, _ = expected(q, k, v)
        bound = 2e-6 if q.dtype == np.float32 else 4.5e-4
        assert np.linalg.norm(o - want) <= bound * np.linalg.norm(want)


def test_errors_are_codes_and_messages(lib, handle):
    task = make_task(lib, *draw(np.random.default_rng(3), np.float32))
    task.head_dim = 300
    error = ctypes.create_string_buffer(256)
    assert lib.attnd_run(handle, task, 1, None, error, len(error)) == 3
    assert b"head_dim is 300" in error.value


def test_exports_the_c_abi_alone():
    lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    names = {line.split()[2] for line in lines}
    assert names == {"attnd_version", "attnd_task_init", "attnd_create", "attnd_destroy",
                     "attnd_backend_name", "attnd_supports", "attnd_kernel_name", "attnd_run"}
