/* The header is C, and a task has one size in both languages. */
#include "kernels/attnd_kernels.h"

size_t attnd_task_size_in_c(void);
size_t attnd_task_size_in_c(void) { return sizeof(struct attnd_task); }
