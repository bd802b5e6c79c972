// Bytes that are no ComputeRequest, or one of a version that this server does not know.
#include "absl/strings/str_cat.h"
#include "tests/wire/malformed_cases.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using absl::StrCat;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string Good() { return DenseRequest().SerializeAsString(); }

// `field` inside the message at `path`, in an otherwise good request.
struct Place {
  const char* path;
  std::string (*wrap)(const std::string& field);
};
const Place kPlaces[] = {
    {"ComputeRequest", [](const std::string& f) { return Good() + f; }},
    {"ComputeRequest.header", [](const std::string& f) { return Good() + BytesField(1, f); }},
    {"ComputeRequest.header.q",
     [](const std::string& f) { return Good() + BytesField(1, BytesField(1, f)); }},
    {"ComputeRequest.header.k",
     [](const std::string& f) { return Good() + BytesField(1, BytesField(2, f)); }},
    {"ComputeRequest.header.v",
     [](const std::string& f) { return Good() + BytesField(1, BytesField(3, f)); }},
    {"ComputeRequest.header.window",
     [](const std::string& f) { return Good() + BytesField(1, BytesField(6, f)); }},
};

void AddUnknownFields(std::vector<MalformedCase>& cases) {
  for (const Place& place : kPlaces) {
    for (uint32_t number : {19u, 500u, 999u}) {
      const std::pair<const char*, std::string> fields[] = {
          {"varint", VarintField(number, 1)},
          {"fixed32", Fixed32Field(number, 1)},
          {"fixed64", Fixed64Field(number, 1)},
          {"bytes", BytesField(number, "later")},
          {"group", GroupField(number, VarintField(1, 1))},
      };
      for (const auto& [kind, field] : fields) {
        cases.push_back({StrCat("S9 unknown field ", number, " (", kind, ") in ", place.path),
                         place.wrap(field),
                         kUnimplemented,
                         {StrCat(place.path, " field ", number)}});
      }
    }
  }
  for (uint32_t reserved = 16; reserved <= 24; ++reserved) {
    cases.push_back({StrCat("reserved header field ", reserved),
                     Good() + BytesField(1, BytesField(reserved, "")),
                     kUnimplemented,
                     {StrCat("header field ", reserved), "reserved"}});
  }
  for (uint32_t reserved = 5; reserved <= 6; ++reserved) {
    cases.push_back({StrCat("reserved field ", reserved, " of header.k"),
                     Good() + BytesField(1, BytesField(2, BytesField(reserved, ""))),
                     kUnimplemented,
                     {StrCat("header.k field ", reserved), "reserved"}});
  }
}

void AddWrongWireTypes(std::vector<MalformedCase>& cases) {
  const char* const tops[] = {"header", "q", "k", "v"};
  for (uint32_t number = 1; number <= 4; ++number) {
    cases.push_back({StrCat(tops[number - 1], " as a varint"),
                     Good() + VarintField(number, 3),
                     kUnimplemented,
                     {StrCat("ComputeRequest field ", number), tops[number - 1]}});
    cases.push_back({StrCat(tops[number - 1], " as a group"),
                     Good() + GroupField(number, ""),
                     kUnimplemented,
                     {StrCat("ComputeRequest field ", number), tops[number - 1]}});
  }
  const char* const fields[] = {"q",
                                "k",
                                "v",
                                "layout",
                                "causal",
                                "window",
                                "scale",
                                "softcap",
                                "alibi_slopes",
                                "cu_seqlens_q",
                                "cu_seqlens_kv",
                                "want_lse",
                                "priority",
                                "timeout_us",
                                "request_id"};
  for (uint32_t number = 1; number <= 15; ++number) {
    cases.push_back({StrCat("header.", fields[number - 1], " as 8 fixed bytes"),
                     Good() + BytesField(1, Fixed64Field(number, 1)),
                     kUnimplemented,
                     {StrCat("header field ", number), fields[number - 1]}});
  }
}

void AddCutShort(std::vector<MalformedCase>& cases) {
  const std::string good = Good();
  const auto cut = [&](const std::string& name, size_t size, std::vector<std::string> says) {
    cases.push_back({name, good.substr(0, size), kInvalid, std::move(says)});
  };
  cut("empty message", 0, {"header"});
  cut("one byte", 1, {"header"});
  cut("cut in the header", 10, {"header", "8 are left"});
  cut("cut one byte before the end", good.size() - 1, {"field 4 (v)", "640", "639"});
  cut("cut in the middle", good.size() / 2, {"cut short"});
  const std::string bad_header[] = {BytesField(1, "\x08"),
                                    BytesField(1, Tag(15, 2) + Varint(5) + "ab"),
                                    BytesField(2, "\x12\x05\x01"),
                                    Tag(1, 3),
                                    Tag(1, 4),
                                    Tag(4, 0) + std::string(11, '\x80'),
                                    Tag(9, 2) + Varint(3) + "abc",
                                    std::string("\0", 1),
                                    "\x07",
                                    "\x7e"};
  for (size_t i = 0; i < std::size(bad_header); ++i) {
    cases.push_back({StrCat("header that does not parse, ", i),
                     good + BytesField(1, bad_header[i]),
                     kInvalid,
                     {"header"}});
  }
}

void AddBrokenWire(std::vector<MalformedCase>& cases) {
  const auto add = [&](const std::string& name, const std::string& tail,
                       std::vector<std::string> says) {
    cases.push_back({name, Good() + tail, kInvalid, std::move(says)});
  };
  add("tag cut short", "\x80", {"tag"});
  add("tag of 6 bytes", std::string("\x82\x80\x80\x80\x80\x00", 6), {"tag"});
  add("field number 0", std::string("\x00", 1), {"numbered 0"});
  add("field number 0 as bytes", std::string("\x02\x01\x61", 3), {"numbered 0"});
  add("wire type 6", Tag(5, 6), {"wire type 6", "field 5"});
  add("wire type 7", Tag(2, 7), {"wire type 7", "field 2 (q)"});
  add("varint cut short", Tag(1000, 0) + "\xff\xff", {"varint", "field 1000"});
  add("varint of 11 bytes", Tag(1000, 0) + std::string(10, '\xff') + "\x01", {"varint", "1000"});
  add("fixed32 cut short", Tag(1000, 5) + "abc", {"field 1000", "needs 4", "3 are left"});
  add("fixed64 cut short", Tag(1000, 1) + "abcdefg", {"field 1000", "needs 8", "7 are left"});
  add("length cut short", Tag(2, 2) + "\x80", {"length", "field 2 (q)"});
  add("length of 6 bytes", Tag(3, 2) + std::string("\x80\x80\x80\x80\x80\x00", 6),
      {"length", "field 3 (k)"});
  for (uint64_t size : {uint64_t{0x7ffffff0}, uint64_t{0x7fffffff}, uint64_t{0xffffffff}}) {
    for (uint32_t number : {1u, 2u, 1000u}) {
      add(StrCat("field ", number, " of ", size, " bytes"), Tag(number, 2) + Varint(size),
          {StrCat("field ", number), StrCat(size)});
    }
  }
  for (uint32_t number : {1u, 2u, 3u, 4u, 1000u}) {
    add(StrCat("field ", number, " one byte past the end"), Tag(number, 2) + Varint(4) + "abc",
        {StrCat("field ", number), "needs 4", "3 are left"});
  }
  add("end of a group that never began", Tag(1000, 4), {"group", "field 1000"});
  add("group without an end", Tag(1000, 3) + VarintField(1, 1), {"group"});
  add("group with another's end", Tag(1000, 3) + Tag(1001, 4), {"group"});
  add("payload inside an open group", Tag(1000, 3) + BytesField(2, "abc"), {"group"});
  std::string deep, end;
  for (int i = 0; i < 200; ++i) deep += Tag(1000, 3), end += Tag(1000, 4);
  add("groups 200 deep", deep + end, {"does not parse"});
}

void AddNotUtf8(std::vector<MalformedCase>& cases) {
  const std::pair<const char*, std::string> ids[] = {
      {"lone continuation", "\x80"},   {"overlong slash", "\xc0\xaf"},
      {"surrogate", "\xed\xa0\x80"},   {"above 10FFFF", "\xf4\x90\x80\x80"},
      {"cut sequence", "id \xe2\x82"}, {"latin-1", "caf\xe9"},
      {"byte never used", "\xff"},
  };
  for (const auto& [name, id] : ids) {
    cases.push_back({StrCat("request_id not UTF-8: ", name),
                     Good() + BytesField(1, BytesField(15, id)),
                     kInvalid,
                     {"request_id", "UTF-8"}});
  }
}

void AddOtherThings(std::vector<MalformedCase>& cases) {
  const size_t mebi = size_t{1} << 20;
  cases.push_back({"hints above the header limit",
                   Good() + BytesField(1000, std::string(mebi, 'h')),
                   kInvalid,
                   {"header", "1048576"}});
  cases.push_back({"header above its limit",
                   BytesField(1, BytesField(1000, std::string(mebi, 'h'))),
                   kInvalid,
                   {"header", "1048576"}});
  std::string many;
  for (size_t i = 0; i < mebi / 2; ++i) many += VarintField(9, 1).substr(0, 2);
  cases.push_back({"half a million small fields", many, kUnimplemented, {"field 9"}});
  const std::pair<const char*, std::string> things[] = {
      {"an HTTP request", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {"JSON", "{\"q\": [1, 2, 3]}"},
      {"a gzip header", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00", 8)},
      {"a NumPy file", std::string("\x93NUMPY\x01\x00", 8)},
      {"zeros", std::string(64, '\0')},
      {"ones", std::string(64, '\xff')},
      {"a message of its own length", BytesField(1, Good())},
      {"a gRPC frame", std::string("\x00\x00\x00\x00\x05", 5) + Good()},
  };
  for (const auto& [name, bytes] : things) {
    // The first field that makes no sense decides, so only the last two have a message of note.
    cases.push_back({name, bytes, kInvalid, {}});
  }
}

}  // namespace

void AddBadMessages(std::vector<MalformedCase>& cases) {
  AddUnknownFields(cases);
  AddWrongWireTypes(cases);
  AddCutShort(cases);
  AddBrokenWire(cases);
  AddNotUtf8(cases);
  AddOtherThings(cases);
}

std::vector<MalformedCase> MalformedCases() {
  std::vector<MalformedCase> cases;
  AddBadHeaders(cases);
  AddBadMessages(cases);
  return cases;
}

}  // namespace attnd::testing
