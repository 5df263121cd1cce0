// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the fuzzed parsers share. Each file of this folder that ends in
// _fuzz.cpp defines a target with TESSERA_FUZZ_TARGET(name) { ... }, which gets
// an `input` of any bytes. It may refuse it with a tessera::Error; any other
// end is a bug. libfuzzer_entry.cpp and replay_main.cpp call the targets.

#include "tessera/runtime/core/error.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace tessera {

using FuzzTarget = void (*)(std::string_view input);

/// The targets of this program by name.
inline std::map<std::string, FuzzTarget>& fuzz_targets() {
  static std::map<std::string, FuzzTarget> targets;
  return targets;
}

/// A file that lies in memory only.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content)
      : fd_(::memfd_create("tessera-fuzz", MFD_CLOEXEC)) {
    TESSERA_CHECK(fd_ >= 0, "cannot make a file in memory");
    while (!content.empty()) {
      const auto count = ::write(fd_, content.data(), content.size());
      TESSERA_CHECK(count > 0, "cannot write a file in memory");
      content.remove_prefix(static_cast<size_t>(count));
    }
  }
  ~MemoryFile() {
    ::close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const {
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

} // namespace tessera

#define TESSERA_FUZZ_TARGET(name)                        \
  static void fuzz_##name(std::string_view input);       \
  static const bool name##_is_known =                    \
      fuzz_targets().emplace(#name, fuzz_##name).second; \
  static void fuzz_##name([[maybe_unused]] std::string_view input)
