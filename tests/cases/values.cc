#include "tests/cases/values.h"

#include <cmath>
#include <numbers>

namespace attnd::testing {
namespace {

// value = offset + spread * z.
struct Law {
  float offset = 0;
  float spread = 1;
};
struct Laws {
  Law q, k, v;
};

Laws LawsOf(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal:
    case Distribution::kSink:
      return {};
    case Distribution::kLarge:
      return {{0, 4}, {0, 4}, {0, 100}};
    case Distribution::kTiny:
      return {{0, 1e-3f}, {0, 1e-3f}, {0, 1e-3f}};
    case Distribution::kConstant:
      return {{0.75f, 0}, {0.75f, 0}, {0.75f, 0}};
    case Distribution::kOffset:
      return {{}, {}, {30, 1}};
    case Distribution::kFarBelowZero:
      return {{4, 0.125f}, {-4, 0.125f}, {}};
  }
  return {};
}

// 2^16 numbers of N(0,1), by Box and Muller: drawing from them is many times quicker than computing
// each anew, and 2^16 different values are as good as any.
const std::vector<float>& Normals() {
  static const auto* const normals = [] {
    Random random(1);
    const auto uniform = [&] { return (static_cast<double>(random.Next() >> 11) + 1) * 0x1p-53; };
    auto* all = new std::vector<float>;
    while (all->size() < 1 << 16) {
      const double radius = std::sqrt(-2 * std::log(uniform()));
      const double angle = 2 * std::numbers::pi * uniform();
      all->push_back(static_cast<float>(radius * std::cos(angle)));
      all->push_back(static_cast<float>(radius * std::sin(angle)));
    }
    return all;
  }();
  return *normals;
}

std::vector<float> Draw(int64_t size_elems, const Law& law, uint64_t seed) {
  const std::vector<float>& normals = Normals();
  Random random(seed);
  std::vector<float> values(size_elems);
  uint64_t bits = 0;
  for (int64_t i = 0; i < size_elems; ++i, bits >>= 16) {
    if (i % 4 == 0) bits = random.Next();
    values[i] = law.offset + law.spread * normals[bits & 0xffff];
  }
  return values;
}

}  // namespace

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Values DrawValues(const kernels::AttentionProblem& p, Distribution distribution, uint64_t seed) {
  const Laws laws = LawsOf(distribution);
  const int64_t q_elems = p.batch * p.q_heads * p.q_len * p.head_dim;
  const int64_t kv_elems = p.batch * p.kv_heads * p.kv_len * p.head_dim;
  Values values{Draw(q_elems, laws.q, 3 * seed), Draw(kv_elems, laws.k, 3 * seed + 1),
                Draw(kv_elems, laws.v, 3 * seed + 2)};
  if (distribution == Distribution::kSink) {
    const int64_t head_elems = p.kv_len * p.head_dim;
    for (int64_t head = 0; head < p.batch * p.kv_heads && p.kv_len > 0; ++head) {
      for (int64_t d = 0; d < p.head_dim; ++d) values.k[head * head_elems + d] *= 6;
    }
  }
  return values;
}

}  // namespace attnd::testing
