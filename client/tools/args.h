// Command lines of the tools: --name value, --name=value, --switch.
#ifndef ATTND_CLIENT_TOOLS_ARGS_H_
#define ATTND_CLIENT_TOOLS_ARGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace attnd::tools {

struct Flag {
  std::string name;   // without dashes
  std::string value;  // what stands for it in the usage text; empty: a switch
  std::string help;
};

// "  --name VALUE   help", a line a flag.
std::string FlagsUsage(const std::vector<Flag>& flags);

// What a command line says. Everything of it is used: INVALID_ARGUMENT for a flag that is not in
// the list, stands twice or lacks its value, and for words that are no flags.
class Args {
 public:
  static absl::StatusOr<Args> Parse(const std::vector<std::string>& words,
                                    const std::vector<Flag>& flags);

  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  absl::optional<std::string> Get(const std::string& name) const;

  // Leave *value alone if the flag is absent. INVALID_ARGUMENT naming the flag and its value.
  absl::Status Read(const std::string& name, std::string* value) const;
  absl::Status Read(const std::string& name, int64_t min, int64_t max, int64_t* value) const;
  absl::Status Read(const std::string& name, double min, double max, double* value) const;
  // Seconds, or a number with its unit: 10, 10s, 500ms, 2m. Above 0.
  absl::Status Read(const std::string& name, absl::Duration* value) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_ARGS_H_
