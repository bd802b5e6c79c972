/* The header is C, and its structs have one size in both languages. */
#include "client/attnd_client.h"

size_t attnd_client_sizes_in_c(int which);
size_t attnd_client_sizes_in_c(int which) {
  switch (which) {
    case 0:
      return sizeof(struct attnd_client_options);
    case 1:
      return sizeof(struct attnd_client_request);
    case 2:
      return sizeof(struct attnd_client_result);
    default:
      return sizeof(struct attnd_client_server_info);
  }
}
