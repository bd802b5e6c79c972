/* attnd's attention kernels for C, and for every language that can call C: libattnd_kernels_c.so.
 *
 * What is computed, and every rule about shapes and masks, stands in proto/attnd/v1/attnd.proto.
 *
 * Errors. Functions that can fail return one of attnd_code; 0 is success. Given a buffer, they also
 * write a message, cut to its size and ended by 0; an empty one on success.
 *
 * Threads. A handle may be used from any thread; attnd_run calls on one handle wait for each other.
 *
 * Growth. A struct begins with its own size, which tells the library how much of it the caller
 * knows: fields are only ever added at the end, and those that the caller does not know take their
 * defaults. A library that is older than the caller's header refuses the call.
 */
#ifndef ATTND_KERNELS_ATTND_KERNELS_H_
#define ATTND_KERNELS_ATTND_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define ATTND_API __attribute__((visibility("default")))

/* The numbers of gRPC's status codes. */
enum attnd_code {
  ATTND_OK = 0,
  ATTND_INVALID_ARGUMENT = 3,    /* the message names the field and the values */
  ATTND_NOT_FOUND = 5,           /* no such backend; the message lists them */
  ATTND_RESOURCE_EXHAUSTED = 8,  /* no memory */
  ATTND_FAILED_PRECONDITION = 9, /* this machine cannot run that backend */
  ATTND_UNIMPLEMENTED = 12,      /* the message says what would be needed */
  ATTND_INTERNAL = 13
};

enum attnd_dtype { ATTND_F32 = 0, ATTND_F16 = 1, ATTND_BF16 = 2 };

enum attnd_causal {
  ATTND_CAUSAL_NONE = 0,
  ATTND_CAUSAL_TOP_LEFT = 1,
  ATTND_CAUSAL_BOTTOM_RIGHT = 2
};

/* A side of the window without a bound. */
#define ATTND_UNBOUNDED ((int64_t)1 << 60)

/* Distance in elements from one batch, head or row to the next. Elements of a row are adjacent. */
struct attnd_strides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

/* One problem and its memory. Start from attnd_task_init. Nothing is owned: the memory belongs to
 * the caller and stays valid until the call has returned (on a CUDA backend: until the stream has
 * passed it). o and lse are written, everything else is only read. */
struct attnd_task {
  uint64_t struct_size_bytes;
  int32_t dtype;  /* attnd_dtype, of q, k, v and o */
  int32_t causal; /* attnd_causal */
  int64_t batch;
  int64_t q_heads;
  int64_t kv_heads; /* divides q_heads */
  int64_t q_len;
  int64_t kv_len;
  int64_t head_dim;     /* 1 .. 256 */
  int64_t window_left;  /* >= 0, or ATTND_UNBOUNDED */
  int64_t window_right; /* likewise */
  float scale;          /* finite, > 0; 0: 1 / sqrt(head_dim) */
  float softcap;        /* finite, >= 0; 0: off */
  const void* q;        /* [batch, q_heads, q_len, head_dim], by its strides */
  const void* k;        /* [batch, kv_heads, kv_len, head_dim], likewise */
  const void* v;        /* as k */
  void* o;              /* as q */
  struct attnd_strides q_strides;
  struct attnd_strides k_strides;
  struct attnd_strides v_strides;
  struct attnd_strides o_strides;
  const float* alibi_slopes; /* [q_heads]; NULL: off */
  float* lse;                /* [batch, q_heads, q_len], rows adjacent; NULL: not wanted */
  int64_t lse_batch_stride;  /* in elements */
  int64_t lse_head_stride;
};

/* An opaque backend with its threads and scratch memory. */
typedef struct attnd_kernels attnd_kernels;

/* "0.1.0". Static memory. */
ATTND_API const char* attnd_version(void);

/* Zeroes the task, then sets the defaults: both window sides unbounded, struct_size_bytes =
 * `struct_size_bytes`, which is sizeof(struct attnd_task) as the caller knows it. A task smaller
 * than its first version, or NULL, is left alone. */
ATTND_API void attnd_task_init(struct attnd_task* task, uint64_t struct_size_bytes);

/* `backend`: a name such as "cpu_avx2"; NULL or "": the environment's ATTND_BACKEND, or else the
 * best one here. `threads` of a CPU backend: 0 .. 1024; 0: one per processor that the process may
 * use. Where there is a processor for each, they look for the next call for 200 us before they
 * sleep. On success *handle is the caller's, to be given to attnd_destroy; on failure it is NULL.
 */
ATTND_API int attnd_create(const char* backend, int32_t threads, attnd_kernels** handle,
                           char* error, size_t error_size_bytes);

/* No call on this handle is running. NULL is allowed. */
ATTND_API void attnd_destroy(attnd_kernels* handle);

/* The backend's name. Valid as long as the handle. */
ATTND_API const char* attnd_backend_name(const attnd_kernels* handle);

/* OK if attnd_run would take this task. Its pointers are not looked at. */
ATTND_API int attnd_supports(const attnd_kernels* handle, const struct attnd_task* task,
                             char* error, size_t error_size_bytes);

/* The kernel that would run this task, as attn_fwd_f32_d64_causal_avx2, cut to the size of `name`
 * and ended by 0. Fails as attnd_supports does. */
ATTND_API int attnd_kernel_name(const attnd_kernels* handle, const struct attnd_task* task,
                                char* name, size_t name_size_bytes, char* error,
                                size_t error_size_bytes);

/* Computes `count` different tasks in one call. All are checked before the first one starts; the
 * message names the first bad one. `stream`: a CUDA stream; NULL on a CPU, where the answers are
 * there on return. On failure the outputs are undefined. */
ATTND_API int attnd_run(attnd_kernels* handle, const struct attnd_task* tasks, int64_t count,
                        void* stream, char* error, size_t error_size_bytes);

#if defined(__cplusplus)
}
#endif

#endif /* ATTND_KERNELS_ATTND_KERNELS_H_ */
