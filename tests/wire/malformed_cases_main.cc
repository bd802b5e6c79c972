// malformed_cases --out DIR: writes each case as DIR/NNN.bin, and DIR/manifest.json, an array of
// {file, name, code, substrings}. DIR is made if it is not there.
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/wire/malformed_cases.h"

int main(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--out") {
    std::cerr << "usage: malformed_cases --out DIR\n";
    return 2;
  }
  const std::string folder = argv[2];
  std::error_code ignored;  // a folder that is not there shows when the manifest is written
  std::filesystem::create_directories(folder, ignored);
  nlohmann::json manifest = nlohmann::json::array();
  for (const auto& bad : attnd::testing::MalformedCases()) {
    std::ostringstream file;
    file << std::setw(3) << std::setfill('0') << manifest.size() << ".bin";
    std::ofstream(folder + "/" + file.str(), std::ios::binary) << bad.bytes;
    manifest.push_back({{"file", file.str()},
                        {"name", bad.name},
                        {"code", absl::StatusCodeToString(bad.code)},
                        {"substrings", bad.substrings}});
  }
  std::ofstream out(folder + "/manifest.json");
  out << manifest.dump(1) << "\n";
  out.close();
  if (!out) {
    std::cerr << "malformed_cases: cannot write to " << folder << "\n";
    return 1;
  }
  std::cout << manifest.size() << " cases in " << folder << "\n";
  return 0;
}
