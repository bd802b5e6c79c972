// Requests that parse and must not pass the checks.
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/wire/malformed_cases.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using absl::StrCat;
using Spoil = std::function<void(v1::ComputeRequest&)>;
using SpoilHeader = std::function<void(v1::ComputeHeader&)>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
const float kNan = std::nanf("");
const float kInf = INFINITY;

class Table {
 public:
  explicit Table(std::vector<MalformedCase>& cases) : cases_(cases) {}

  void Add(const std::string& name, v1::ComputeRequest request, const Spoil& spoil,
           std::vector<std::string> substrings, absl::StatusCode code = kInvalid) {
    spoil(request);
    cases_.push_back({name, request.SerializeAsString(), code, std::move(substrings)});
  }
  void Dense(const std::string& name, const SpoilHeader& spoil, std::vector<std::string> substrings,
             absl::StatusCode code = kInvalid) {
    Add(
        name, DenseRequest(), [&](v1::ComputeRequest& r) { spoil(*r.mutable_header()); },
        std::move(substrings), code);
  }
  void Packed(const std::string& name, const SpoilHeader& spoil,
              std::vector<std::string> substrings, absl::StatusCode code = kInvalid) {
    Add(
        name, PackedRequest(), [&](v1::ComputeRequest& r) { spoil(*r.mutable_header()); },
        std::move(substrings), code);
  }
  // A dense request of these shapes, payloads to match.
  void Shapes(const std::string& name, const std::vector<int64_t>& q, const std::vector<int64_t>& k,
              const std::vector<int64_t>& v, std::vector<std::string> substrings) {
    Add(
        name, DenseRequest(),
        [&](v1::ComputeRequest& r) {
          SetShape(*r.mutable_header()->mutable_q(), q);
          SetShape(*r.mutable_header()->mutable_k(), k);
          SetShape(*r.mutable_header()->mutable_v(), v);
          FillPayloads(r);
        },
        std::move(substrings));
  }

 private:
  std::vector<MalformedCase>& cases_;
};

v1::TensorSpec& SpecOf(v1::ComputeHeader& header, char tensor) {
  return tensor == 'q'   ? *header.mutable_q()
         : tensor == 'k' ? *header.mutable_k()
                         : *header.mutable_v();
}

std::string& PayloadOf(v1::ComputeRequest& request, char tensor) {
  return tensor == 'q'   ? *request.mutable_q()
         : tensor == 'k' ? *request.mutable_k()
                         : *request.mutable_v();
}

void AddNegativeExtents(Table& table) {
  for (char tensor : {'q', 'k', 'v'}) {
    for (int axis = 0; axis < 4; ++axis) {
      for (int64_t value : {int64_t{-1}, kMin}) {
        const auto spoil = [&](v1::ComputeHeader& h) { SpecOf(h, tensor).set_shape(axis, value); };
        const std::string field = StrCat(std::string(1, tensor), ".shape[", axis, "]");
        table.Dense(StrCat("S1 dense ", field, " is ", value), spoil, {field, StrCat(value)});
        if (axis == 3) continue;
        table.Packed(StrCat("S1 packed ", field, " is ", value), spoil, {field, StrCat(value)});
      }
    }
  }
}

void AddRanks(Table& table) {
  for (char tensor : {'q', 'k', 'v'}) {
    const std::string field = StrCat(std::string(1, tensor), ".shape");
    for (int rank : {0, 1, 2, 3, 5, 9}) {
      const auto spoil = [&](v1::ComputeHeader& h) {
        SpecOf(h, tensor).clear_shape();
        for (int i = 0; i < rank; ++i) SpecOf(h, tensor).add_shape(2);
      };
      // K and V may leave the head axis out.
      const bool dense_is_fine = rank == 3 && tensor != 'q';
      const bool packed_is_fine = rank == 3 || (rank == 2 && tensor != 'q');
      if (!dense_is_fine) {
        table.Dense(StrCat("dense ", field, " of rank ", rank), spoil,
                    {field, StrCat("rank ", rank), "LAYOUT_BHSD", "rank 4"});
      }
      if (!packed_is_fine) {
        table.Packed(StrCat("packed ", field, " of rank ", rank), spoil,
                     {field, StrCat("rank ", rank), "LAYOUT_THD", "rank 3"});
      }
    }
  }
}

void AddDTypes(Table& table) {
  for (char tensor : {'q', 'k', 'v'}) {
    const std::string field = StrCat(std::string(1, tensor), ".dtype");
    const auto set = [&](int dtype) {
      return [tensor, dtype](v1::ComputeHeader& h) {
        SpecOf(h, tensor).set_dtype(static_cast<v1::DataType>(dtype));
      };
    };
    table.Dense(StrCat(field, " unspecified"), set(0), {field, "DATA_TYPE_UNSPECIFIED"});
    for (int unknown : {4, 99, -1, std::numeric_limits<int>::max()}) {
      table.Dense(StrCat(field, " is ", unknown), set(unknown), {field, StrCat(unknown)},
                  kUnimplemented);
    }
    for (v1::DataType other : {v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
      table.Dense(StrCat(field, " is ", v1::DataType_Name(other), " beside FLOAT32"), set(other),
                  {field, v1::DataType_Name(other), "DATA_TYPE_FLOAT32"});
    }
  }
}

void AddMissing(Table& table) {
  table.Add("header missing", DenseRequest(), [](auto& r) { r.clear_header(); }, {"header"});
  table.Add("header empty", DenseRequest(), [](auto& r) { r.mutable_header()->Clear(); }, {"q"});
  table.Dense("header.q missing", [](auto& h) { h.clear_q(); }, {"header.q"});
  table.Dense("header.k missing", [](auto& h) { h.clear_k(); }, {"header.k"});
  table.Dense("header.v missing", [](auto& h) { h.clear_v(); }, {"header.v"});
}

void AddOverflows(Table& table) {
  const int64_t big = int64_t{1} << 31;
  for (char tensor : {'q', 'k', 'v'}) {
    const std::string field = StrCat(std::string(1, tensor), ".shape");
    const auto set = [&](const std::vector<int64_t>& shape) {
      return [tensor, shape](v1::ComputeHeader& h) { SetShape(SpecOf(h, tensor), shape); };
    };
    table.Dense(StrCat("S2 ", field, " elements overflow"), set({big, big, big, 8}),
                {field, StrCat(big), "overflow"});
    table.Dense(StrCat("S2 ", field, " elements wrap to zero"), set({big, big, 4, 1}),
                {field, StrCat(big), "overflow"});
    table.Dense(StrCat("S2 ", field, " bytes overflow"), set({kMax / 4 + 1, 1, 1, 1}),
                {field, StrCat(kMax / 4 + 1), "overflow"});
    table.Dense(StrCat("S2 ", field, " of largest extents"), set({kMax, kMax, kMax, kMax}),
                {field, StrCat(kMax), "overflow"});
  }
  table.Shapes("S2 q_len times kv_len overflows", {0, 4, int64_t{1} << 40, 8},
               {0, 2, int64_t{1} << 40, 8}, {0, 2, int64_t{1} << 40, 8},
               {"overflow", "q_len 1099511627776", "kv_len 1099511627776"});
}

void AddPayloadSizes(Table& table) {
  for (char tensor : {'q', 'k', 'v'}) {
    const std::string name(1, tensor);
    for (bool packed : {false, true}) {
      v1::ComputeRequest good = packed ? PackedRequest() : DenseRequest();
      const size_t size = PayloadOf(good, tensor).size();
      for (size_t wrong : {size_t{0}, size - 1, size + 1, 2 * size, size / 2}) {
        table.Add(StrCat("S4 ", packed ? "packed " : "dense ", name, " of ", wrong, " bytes"), good,
                  [&](auto& r) { PayloadOf(r, tensor).resize(wrong); },
                  {name, StrCat(wrong, " bytes"), StrCat(size)});
      }
    }
  }
  table.Add("S4 half-width dtype with full-width bytes", DenseRequest(),
            [](auto& r) {
              for (char t : {'q', 'k', 'v'}) {
                SpecOf(*r.mutable_header(), t).set_dtype(v1::DATA_TYPE_BFLOAT16);
              }
            },
            {"q has 768 bytes", "DATA_TYPE_BFLOAT16", "384"});
  table.Add("S4 bytes for an empty shape", DenseRequest(),
            [](auto& r) { r.mutable_header()->mutable_q()->set_shape(2, 0); },
            {"q has 768 bytes", "needs 0"});
}

void AddDisagreements(Table& table) {
  table.Shapes("K40 v longer than k", {2, 4, 3, 8}, {2, 2, 5, 8}, {2, 2, 6, 8},
               {"k.shape is [2, 2, 5, 8]", "v.shape is [2, 2, 6, 8]"});
  table.Shapes("K40 v shorter than k", {2, 4, 3, 8}, {2, 2, 5, 8}, {2, 2, 4, 8},
               {"[2, 2, 5, 8]", "[2, 2, 4, 8]"});
  table.Shapes("v_head_dim", {2, 4, 3, 8}, {2, 2, 5, 8}, {2, 2, 5, 4},
               {"[2, 2, 5, 8]", "[2, 2, 5, 4]", "v_head_dim"});
  table.Shapes("v with other heads", {2, 4, 3, 8}, {2, 2, 5, 8}, {2, 1, 5, 8},
               {"[2, 2, 5, 8]", "[2, 1, 5, 8]"});
  table.Shapes("v of other rank", {2, 4, 3, 8}, {2, 1, 5, 8}, {2, 5, 8},
               {"[2, 1, 5, 8]", "[2, 5, 8]"});
  table.Shapes("other batch", {2, 4, 3, 8}, {3, 2, 5, 8}, {3, 2, 5, 8},
               {"batch", "[2, 4, 3, 8]", "[3, 2, 5, 8]"});
  table.Shapes("other batch, no head axis", {2, 4, 3, 8}, {1, 5, 8}, {1, 5, 8},
               {"batch", "[2, 4, 3, 8]", "[1, 5, 8]"});
  table.Shapes("other head_dim", {2, 4, 3, 8}, {2, 2, 5, 16}, {2, 2, 5, 16},
               {"head_dim", "[2, 4, 3, 8]", "[2, 2, 5, 16]"});
  table.Shapes("head_dim 0", {2, 4, 3, 0}, {2, 2, 5, 0}, {2, 2, 5, 0}, {"head_dim is 0", "1..256"});
  for (int64_t dim : {257, 512}) {
    table.Shapes(StrCat("head_dim ", dim), {1, 1, 1, dim}, {1, 1, 1, dim}, {1, 1, 1, dim},
                 {StrCat("head_dim is ", dim), "1..256"});
  }
  for (auto [q, kv] : {std::pair<int64_t, int64_t>{33, 2}, {4, 3}, {1, 2}, {4, 0}, {28, 8}}) {
    table.Shapes(StrCat("K42 heads ", q, "/", kv), {1, q, 1, 8}, {1, kv, 1, 8}, {1, kv, 1, 8},
                 {StrCat("q_heads is ", q), StrCat("kv_heads, which is ", kv)});
  }
}

void AddSequences(Table& table) {
  struct Bad {
    const char* name;
    std::vector<int64_t> ends;  // for q, whose total is 7; kv's are two more each, but the first
    std::vector<std::string> q_says;
  };
  const std::vector<Bad> bad = {
      {"missing", {}, {"missing"}},
      {"not from 0", {1, 3, 3, 7}, {"[0] is 1"}},
      {"from below 0", {-2, 3, 3, 7}, {"[0] is -2"}},
      {"decreasing", {0, 4, 3, 7}, {"[2] is 3", "[1]", "4"}},
      {"past the end and back", {0, 100, 3, 7}, {"[2] is 3", "100"}},
      {"negative in the middle", {0, -5, 3, 7}, {"[1] is -5", "[0]"}},
      {"too short", {0, 3, 3, 6}, {"[3]", "6", "7 tokens"}},
      {"too long", {0, 3, 3, 8}, {"[3]", "8", "7 tokens"}},
      {"far too long", {0, 3, 3, kMax}, {StrCat(kMax), "7 tokens"}},
      {"one entry", {0}, {"[0]", "7 tokens"}},
  };
  for (const Bad& b : bad) {
    auto says = b.q_says;
    says.push_back("cu_seqlens_q");
    table.Packed(
        StrCat("cu_seqlens_q ", b.name),
        [&](auto& h) {
          h.mutable_cu_seqlens_q()->Clear();
          h.mutable_cu_seqlens_q()->Add(b.ends.begin(), b.ends.end());
        },
        says);
    table.Packed(StrCat("cu_seqlens_kv ", b.name),
                 [&](auto& h) {
                   h.mutable_cu_seqlens_kv()->Clear();
                   h.mutable_cu_seqlens_kv()->Add(b.ends.begin(), b.ends.end());
                   if (b.ends.size() == 4 && b.ends[3] == 7) h.set_cu_seqlens_kv(3, 9);
                 },
                 {"cu_seqlens_kv"});
  }
  table.Packed("cu_seqlens of different counts", [](auto& h) { h.add_cu_seqlens_kv(9); },
               {"cu_seqlens_q has 4", "cu_seqlens_kv has 5"});
  table.Packed("more sequences than the limit",
               [](auto& h) {
                 for (int i = 0; i < 65537; ++i) h.add_cu_seqlens_q(7), h.add_cu_seqlens_kv(9);
               },
               {"65540", "65536"});
  for (v1::Layout layout : {v1::LAYOUT_UNSPECIFIED, v1::LAYOUT_BHSD, v1::LAYOUT_BSHD}) {
    const std::string name = v1::Layout_Name(layout);
    const auto dense = [&](bool for_q) {
      return [layout, for_q](v1::ComputeHeader& h) {
        h.set_layout(layout);
        for (auto* t : {h.mutable_k(), h.mutable_v()}) SetShape(*t, {2, 5, 2, 8});
        SetShape(*h.mutable_q(), {2, 3, 4, 8});
        if (layout != v1::LAYOUT_BSHD) {
          for (auto* t : {h.mutable_k(), h.mutable_v()}) SetShape(*t, {2, 2, 5, 8});
          SetShape(*h.mutable_q(), {2, 4, 3, 8});
        }
        (for_q ? h.mutable_cu_seqlens_q() : h.mutable_cu_seqlens_kv())->Add(0);
      };
    };
    table.Dense(StrCat("cu_seqlens_q with ", name), dense(true), {"cu_seqlens_q has 1", "LAYOUT_"});
    table.Dense(StrCat("cu_seqlens_kv with ", name), dense(false), {"cu_seqlens_kv has 1"});
  }
}

void AddOptions(Table& table) {
  for (int64_t value : {int64_t{-1}, kMin}) {
    table.Dense(StrCat("window.left ", value),
                [&](auto& h) { h.mutable_window()->set_left(value); },
                {"window.left", StrCat(value)});
    table.Dense(StrCat("window.right ", value),
                [&](auto& h) { h.mutable_window()->set_right(value); },
                {"window.right", StrCat(value)});
    table.Dense(StrCat("timeout_us ", value), [&](auto& h) { h.set_timeout_us(value); },
                {"timeout_us", StrCat(value)});
  }
  table.Dense("timeout_us 0", [](auto& h) { h.set_timeout_us(0); }, {"timeout_us is 0"});
  for (float value : {-1.0f, kNan, kInf, -kInf}) {
    table.Dense(StrCat("scale ", value), [&](auto& h) { h.set_scale(value); },
                {"scale", StrCat(value)});
    table.Dense(StrCat("softcap ", value), [&](auto& h) { h.set_softcap(value); },
                {"softcap", StrCat(value)});
    if (value == -1.0f) continue;
    table.Dense(StrCat("an alibi slope ", value),
                [&](auto& h) {
                  for (float slope : {0.5f, 0.25f, value, 0.125f}) h.add_alibi_slopes(slope);
                },
                {"alibi_slopes[2]", StrCat(value)});
  }
  table.Dense("scale 0", [](auto& h) { h.set_scale(0); }, {"scale is 0"});
  table.Dense("scale -0", [](auto& h) { h.set_scale(-0.0f); }, {"scale is -0"});
  for (int count : {1, 3, 5, 1000}) {
    table.Dense(StrCat(count, " alibi slopes for 4 heads"),
                [&](auto& h) { h.mutable_alibi_slopes()->Resize(count, 0.5f); },
                {StrCat("alibi_slopes has ", count), "4 heads"});
  }
  for (uint32_t value : {10u, 100u, 0x80000000u, 0xffffffffu}) {
    table.Dense(StrCat("priority ", value), [&](auto& h) { h.set_priority(value); },
                {StrCat("priority is ", value), "0..9"});
  }
  for (int size : {129, 1000, 100000}) {
    table.Dense(StrCat("request_id of ", size, " bytes"),
                [&](auto& h) { h.set_request_id(std::string(static_cast<size_t>(size), 'x')); },
                {StrCat("request_id is ", size), "128"});
  }
  for (int value : {4, 7, 1000, -1}) {
    table.Dense(
        StrCat("layout ", value), [&](auto& h) { h.set_layout(static_cast<v1::Layout>(value)); },
        {StrCat("layout is ", value)}, kUnimplemented);
  }
  for (int value : {3, 1000, -1}) {
    table.Dense(
        StrCat("causal ", value),
        [&](auto& h) { h.set_causal(static_cast<v1::CausalAlignment>(value)); },
        {StrCat("causal is ", value)}, kUnimplemented);
  }
}

}  // namespace

void AddBadHeaders(std::vector<MalformedCase>& cases) {
  Table table(cases);
  AddNegativeExtents(table);
  AddRanks(table);
  AddDTypes(table);
  AddMissing(table);
  AddOverflows(table);
  AddPayloadSizes(table);
  AddDisagreements(table);
  AddSequences(table);
  AddOptions(table);
}

}  // namespace attnd::testing
