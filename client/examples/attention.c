/* Asks a server for causal attention by the C ABI, and looks at a row whose answer is known.
 *
 *   attention_c [HOST:PORT]      default: 127.0.0.1:7070
 */
#include <stdio.h>
#include <stdlib.h>

#include "client/attnd_client.h"

enum { kHeads = 8, kLen = 512, kHeadDim = 64, kCount = kHeads * kLen * kHeadDim };

static float q[kCount], k[kCount], v[kCount], o[kCount];

int main(int argc, char** argv) {
  const int64_t shape[4] = {1, kHeads, kLen, kHeadDim};
  for (int i = 0; i < kCount; ++i) {
    q[i] = (float)rand() / RAND_MAX - 0.5f;
    k[i] = (float)rand() / RAND_MAX - 0.5f;
    v[i] = (float)rand() / RAND_MAX - 0.5f;
  }

  attnd_client* client = NULL;
  char error[256];
  const char* address = argc > 1 ? argv[1] : "127.0.0.1:7070";
  if (attnd_client_connect(address, NULL, &client, error, sizeof(error)) != ATTND_CLIENT_OK) {
    fprintf(stderr, "attention_c: %s\n", error);
    return 1;
  }
  struct attnd_client_request request;
  attnd_client_request_init(&request, sizeof(request));
  request.q = (struct attnd_client_tensor){q, shape, 4, ATTND_CLIENT_F32};
  request.k = (struct attnd_client_tensor){k, shape, 4, ATTND_CLIENT_F32};
  request.v = (struct attnd_client_tensor){v, shape, 4, ATTND_CLIENT_F32};
  request.o = o;
  request.causal = ATTND_CLIENT_CAUSAL_BOTTOM_RIGHT;
  request.timeout_us = 30 * 1000000;
  struct attnd_client_result result = {.struct_size_bytes = sizeof(result)};
  const int code = attnd_client_compute(client, &request, &result);
  attnd_client_close(client);
  if (code != ATTND_CLIENT_OK) {
    fprintf(stderr, "attention_c: %s\n", result.message);
    return 1;
  }

  /* The first row of each head sees one key: its answer is that key's V. */
  float off = 0;
  for (int head = 0; head < kHeads; ++head) {
    for (int i = head * kLen * kHeadDim; i < head * kLen * kHeadDim + kHeadDim; ++i) {
      const float difference = o[i] > v[i] ? o[i] - v[i] : v[i] - o[i];
      if (difference > off) off = difference;
    }
  }
  printf("%s on %s, %lld us of kernel; first rows are off by %g\n", result.kernel, result.device,
         (long long)result.run_us, (double)off);
  return off == 0 ? 0 : 1;
}
