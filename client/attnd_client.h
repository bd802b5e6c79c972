/* attnd's client for C, and for every language that can call C: libattnd_client_c.so.
 *
 * What is computed, and every rule about shapes and masks, stands in proto/attnd/v1/attnd.proto;
 * what a client does by itself (retries, shared memory, streams) in client/client.h.
 *
 * Errors. Functions that can fail return one of attnd_client_code; 0 is success. Texts are UTF-8,
 * cut to the size of their place and ended by 0.
 *
 * Threads. A client may be used from any thread, and serves a whole process. A call may be
 * cancelled from any thread; one thread at a time waits for it. A fork takes no client along: the
 * child must leave those of its parent alone, attnd_client_close included.
 *
 * Ownership. Memory that a request names stays the caller's, and must stay as it is until the call
 * has ended; structs and texts are not looked at any more once a function has returned.
 *
 * Growth. A struct begins with its own size, which tells the library how much of it the caller
 * knows: fields are only ever added at the end, and those that the caller does not know take their
 * defaults. A library that is older than the caller's header refuses the call (UNIMPLEMENTED).
 */
#ifndef ATTND_CLIENT_ATTND_CLIENT_H_
#define ATTND_CLIENT_ATTND_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define ATTND_CLIENT_API __attribute__((visibility("default")))

/* The numbers of gRPC's status codes. */
enum attnd_client_code {
  ATTND_CLIENT_RUNNING = -1, /* of attnd_client_wait alone: the call has not ended yet */
  ATTND_CLIENT_OK = 0,
  ATTND_CLIENT_CANCELLED = 1,
  ATTND_CLIENT_UNKNOWN = 2,
  ATTND_CLIENT_INVALID_ARGUMENT = 3, /* the message names the field and the values */
  ATTND_CLIENT_DEADLINE_EXCEEDED = 4,
  ATTND_CLIENT_NOT_FOUND = 5, /* no server's side socket, or it does not have a region any more */
  ATTND_CLIENT_ALREADY_EXISTS = 6,
  ATTND_CLIENT_PERMISSION_DENIED = 7,
  ATTND_CLIENT_RESOURCE_EXHAUSTED = 8, /* a queue or a budget is full; no memory */
  ATTND_CLIENT_FAILED_PRECONDITION = 9,
  ATTND_CLIENT_ABORTED = 10,
  ATTND_CLIENT_OUT_OF_RANGE = 11,
  ATTND_CLIENT_UNIMPLEMENTED = 12, /* the message says what would be needed */
  ATTND_CLIENT_INTERNAL = 13,
  ATTND_CLIENT_UNAVAILABLE = 14, /* no server, or one that drains, through all tries */
  ATTND_CLIENT_DATA_LOSS = 15,
  ATTND_CLIENT_UNAUTHENTICATED = 16
};

enum attnd_client_dtype { ATTND_CLIENT_F32 = 0, ATTND_CLIENT_F16 = 1, ATTND_CLIENT_BF16 = 2 };

enum attnd_client_layout {
  ATTND_CLIENT_BHSD = 0, /* [batch, heads, len, head_dim] */
  ATTND_CLIENT_BSHD = 1, /* [batch, len, heads, head_dim] */
  ATTND_CLIENT_THD = 2   /* [total_tokens, heads, head_dim], with cu_seqlens */
};

enum attnd_client_causal {
  ATTND_CLIENT_CAUSAL_NONE = 0,
  ATTND_CLIENT_CAUSAL_TOP_LEFT = 1,
  ATTND_CLIENT_CAUSAL_BOTTOM_RIGHT = 2
};

enum attnd_client_transport {
  ATTND_CLIENT_AUTO = 0,
  ATTND_CLIENT_UNARY = 1,
  ATTND_CLIENT_STREAM = 2,
  ATTND_CLIENT_REGION = 3
};

/* Which options of a request are given; the others take the defaults of attnd.proto. */
enum attnd_client_given {
  ATTND_CLIENT_GIVEN_WINDOW_LEFT = 1,
  ATTND_CLIENT_GIVEN_WINDOW_RIGHT = 2,
  ATTND_CLIENT_GIVEN_SCALE = 4,
  ATTND_CLIENT_GIVEN_SOFTCAP = 8
};

#define ATTND_CLIENT_NO_TIMEOUT INT64_MAX

struct attnd_client_options {
  uint64_t struct_size_bytes;
  int64_t max_region_bytes; /* of memory shared with the server, in use or kept */
  const char* local_socket; /* the server's --local_socket; NULL: where it is by default; "none": no
                               shared memory */
  int32_t max_tries;        /* how often a call is sent at most; 1: no retry */
  int32_t reserved;         /* 0 */
};

/* Dense, row-major, little-endian. */
struct attnd_client_tensor {
  const void* data;     /* NULL only if there are no bytes */
  const int64_t* shape; /* [rank] */
  int32_t rank;
  int32_t dtype; /* attnd_client_dtype */
};

/* One problem, its memory, and how it is to be asked. Start from attnd_client_request_init. */
struct attnd_client_request {
  uint64_t struct_size_bytes;
  struct attnd_client_tensor q;
  struct attnd_client_tensor k;
  struct attnd_client_tensor v;
  void* o;    /* as q; what is there after a failure is of no use */
  float* lse; /* an entry for each row of q, [batch, heads, len], packed [heads, total_tokens];
                 NULL: not wanted */
  const float* alibi_slopes; /* [alibi_slopes_count] */
  int64_t alibi_slopes_count;
  const int64_t* cu_seqlens_q; /* [cu_seqlens_q_count]; with ATTND_CLIENT_THD alone */
  int64_t cu_seqlens_q_count;
  const int64_t* cu_seqlens_kv;
  int64_t cu_seqlens_kv_count;
  int64_t window_left;  /* keys, inclusive */
  int64_t window_right; /* likewise */
  float scale;
  float softcap;
  uint32_t given;         /* attnd_client_given */
  int32_t layout;         /* attnd_client_layout */
  int32_t causal;         /* attnd_client_causal */
  int32_t transport;      /* attnd_client_transport */
  int32_t priority;       /* 1 is the highest, 9 the lowest; 0 counts as 5 */
  int32_t waits_at_once;  /* of attnd_client_start: see there */
  int64_t timeout_us;     /* the call with its retries ends by then; <= 0: it has passed */
  const char* request_id; /* NULL: none */
};

/* How a call went: the server's own account of it, or why it failed. Fields that do not belong to
 * that are 0. */
struct attnd_client_result {
  uint64_t struct_size_bytes;
  int32_t code;         /* attnd_client_code */
  int32_t tries;        /* how often it was sent */
  int32_t transport;    /* which it took; never ATTND_CLIENT_AUTO */
  int32_t from_server;  /* the error is an attnd's, and not of something on the way there */
  int32_t untouched;    /* it failed before the server computed anything */
  int32_t has_pushback; /* the server says when to ask again */
  int64_t pushback_ms;  /* negative: never */
  int64_t queue_us;
  int64_t upload_us;
  int64_t run_us;
  int64_t download_us;
  int64_t total_us;
  int64_t batch_id;
  int64_t batch_size;
  int64_t sent_bytes;
  int64_t received_bytes;
  char backend[64];
  char kernel[192];
  char device[192];
  char message[1536]; /* empty if code is 0 */
};

struct attnd_client_server_info {
  uint64_t struct_size_bytes;
  int64_t max_unary_bytes;
  int64_t max_stream_bytes;
  int64_t max_head_dim;
  int32_t takes_cuda_memory;
  int32_t device_count;
  char instance_id[128];
  char version[64];
  char backend[64];
  char backend_reason[512];
  char devices[4096]; /* "id: name" of each, a line each */
};

/* Opaque: a connection to one server. */
typedef struct attnd_client attnd_client;
/* Opaque: a call under way. */
typedef struct attnd_client_call attnd_client_call;

/* "0.1.0". Static memory. */
ATTND_CLIENT_API const char* attnd_client_version(void);

/* Zeroes the struct, then sets the defaults of client.h and struct_size_bytes =
 * `struct_size_bytes`, which is its sizeof as the caller knows it. A struct smaller than its first
 * version, or NULL, is left alone. */
ATTND_CLIENT_API void attnd_client_options_init(struct attnd_client_options* options,
                                                uint64_t struct_size_bytes);
ATTND_CLIENT_API void attnd_client_request_init(struct attnd_client_request* request,
                                                uint64_t struct_size_bytes);

/* `address`: "host:port" or "unix:/path". Does not wait for the server; the first call does.
 * `options`: NULL for the defaults. On success *client is the caller's, to be given to
 * attnd_client_close; on failure it is NULL, and `error`, if it is not NULL, says why. */
ATTND_CLIENT_API int attnd_client_connect(const char* address,
                                          const struct attnd_client_options* options,
                                          attnd_client** client, char* error,
                                          size_t error_size_bytes);

/* All calls of it have been released, and no other function is using it. NULL is allowed. */
ATTND_CLIENT_API void attnd_client_close(attnd_client* client);

/* Computes, and waits for it. `result`, with its struct_size_bytes set, is filled in any case; NULL
 * is allowed. Returns the call's code. */
ATTND_CLIENT_API int attnd_client_compute(attnd_client* client,
                                          const struct attnd_client_request* request,
                                          struct attnd_client_result* result);

/* Starts a call that another function waits for. *call is the caller's, to be given to
 * attnd_client_release; NULL on failure. What is wrong with the problem itself is told by
 * attnd_client_wait. Copies the tensors where they go by shared memory, else does not block.
 *
 * With `waits_at_once` the call goes on while attnd_client_wait runs alone, whose thread the answer
 * then wakes first: some 50 us sooner. */
ATTND_CLIENT_API int attnd_client_start(attnd_client* client,
                                        const struct attnd_client_request* request,
                                        attnd_client_call** call, char* error,
                                        size_t error_size_bytes);

/* Waits for the call's end, for `timeout_us` at most: ATTND_CLIENT_RUNNING if it has not come by
 * then. Else as attnd_client_compute; once. */
ATTND_CLIENT_API int attnd_client_wait(attnd_client_call* call, int64_t timeout_us,
                                       struct attnd_client_result* result);

/* The call's end still comes, with ATTND_CLIENT_CANCELLED unless the answer was there first. */
ATTND_CLIENT_API void attnd_client_cancel(attnd_client_call* call);

/* Gives up the call. One that has not ended is cancelled, and this returns when nothing reads its
 * tensors any more. No other function is using it. NULL is allowed. */
ATTND_CLIENT_API void attnd_client_release(attnd_client_call* call);

/* What the server is and allows. `info` with its struct_size_bytes set. */
ATTND_CLIENT_API int attnd_client_get_server_info(attnd_client* client, int64_t timeout_us,
                                                  struct attnd_client_server_info* info,
                                                  char* error, size_t error_size_bytes);

#if defined(__cplusplus)
}
#endif

#endif /* ATTND_CLIENT_ATTND_CLIENT_H_ */
