// fuzz_seeds decode|kserve DIR: writes inputs of that fuzzer to start from: valid requests of every
// kind and every malformed case of up to 4 KiB, cut here and there. The same files every time.
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/wire/kserve_cases.h"
#include "tests/wire/malformed_cases.h"
#include "tests/wire/messages.h"

namespace {

constexpr int kValidSeeds = 150;
constexpr size_t kMaxSeedBytes = 4096;

std::string Seed(const std::string& message, std::mt19937& random) {
  const unsigned cuts = random() % 4;
  std::string seed(1, static_cast<char>(cuts));
  for (unsigned i = 0; i < cuts; ++i) {
    const size_t cut = random() % (message.size() + 1);
    seed.push_back(static_cast<char>(cut));
    seed.push_back(static_cast<char>(cut >> 8));
  }
  return seed + message;
}

std::vector<std::string> DecodeMessages(std::mt19937& random) {
  std::vector<std::string> messages;
  messages.reserve(kValidSeeds);
  for (int i = 0; i < kValidSeeds; ++i) {
    messages.push_back(attnd::testing::RandomRequest(random).SerializeAsString());
  }
  for (const auto& bad : attnd::testing::MalformedCases()) messages.push_back(bad.bytes);
  return messages;
}

std::vector<std::string> KserveMessages(std::mt19937& random) {
  std::vector<std::string> messages;
  for (int i = 0; i < kValidSeeds; ++i) {
    const auto request = attnd::testing::RandomRequest(random);
    messages.push_back(attnd::testing::InferRequestOf(request).SerializeAsString());
  }
  for (const auto& bad : attnd::testing::MalformedInferCases()) messages.push_back(bad.bytes);
  return messages;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fuzzer = argc == 3 ? argv[1] : "";
  if (fuzzer != "decode" && fuzzer != "kserve") {
    std::cerr << "usage: fuzz_seeds decode|kserve DIR\n";
    return 2;
  }
  std::mt19937 random(1);
  const auto messages = fuzzer == "decode" ? DecodeMessages(random) : KserveMessages(random);
  int written = 0;
  for (const std::string& message : messages) {
    if (message.size() > kMaxSeedBytes) continue;
    std::ofstream file(std::string(argv[2]) + "/seed" + std::to_string(written), std::ios::binary);
    file << Seed(message, random);
    file.close();
    if (!file) {
      std::cerr << "fuzz_seeds: cannot write to " << argv[2] << "\n";
      return 1;
    }
    ++written;
  }
  std::cout << written << " seeds in " << argv[2] << "\n";
  return 0;
}
