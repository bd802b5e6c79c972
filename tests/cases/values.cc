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

std::vector<float> Draw(int64_t size_elems, const Law& law, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(size_elems);
  for (float& value : values) value = law.offset + law.spread * static_cast<float>(random.Normal());
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

double Random::Normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  const double angle = 2 * std::numbers::pi * Uniform();
  has_spare_ = true;
  spare_ = radius * std::sin(angle);
  return radius * std::cos(angle);
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
