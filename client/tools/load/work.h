// The calls that a load is made of, and the memory that they stand on.
#ifndef ATTND_CLIENT_TOOLS_LOAD_WORK_H_
#define ATTND_CLIENT_TOOLS_LOAD_WORK_H_

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/tools/load/call_kind.h"

namespace attnd::tools {

// All kinds share three pools of N(0,1) numbers a dtype, for Q, K and V, so that a trace of a
// thousand shapes takes the memory of its largest. A variant is the same kind elsewhere in the
// pools: answers to another's question are seen. Constant once made; thread-safe.
class Work {
 public:
  static constexpr size_t kVariants = 4;

  // `kinds` is not empty. INVALID_ARGUMENT for one that is too large.
  static absl::StatusOr<std::unique_ptr<Work>> Create(std::vector<CallKind> kinds,
                                                      Transport transport, int64_t seed);

  const std::vector<CallKind>& kinds() const { return kinds_; }

  // One of the kinds, by weight.
  size_t Pick(std::mt19937_64& random) const;

  // Stands on memory of this object's.
  AttentionRequest Request(size_t kind, size_t variant) const;

 private:
  using Pools = std::array<std::vector<unsigned char>, 3>;

  Work(std::vector<CallKind> kinds, Transport transport, int64_t seed);
  TensorView View(const CallKind& kind, size_t operand, size_t variant) const;

  const std::vector<CallKind> kinds_;
  const Transport transport_;
  std::vector<double> weight_ends_;  // sums of the weights up to each kind
  std::map<DType, Pools> pools_;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_WORK_H_
