// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the parsers that are fed with anything share. Each file of this folder
// that ends in _fuzz.cpp defines LLVMFuzzerTestOneInput(), which libFuzzer and
// replay_main.cpp call: it may refuse what it gets with a tessera::Error, and
// nothing else.

#include "tessera/runtime/core/error.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tessera {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
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
