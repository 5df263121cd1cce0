// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera::runtime {

/// Returns how many pages of a mapping are not in memory.
inline size_t missing_pages(void* data, size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  if (::mincore(data, bytes, resident.data()) != 0) {
    return resident.size();
  }
  return static_cast<size_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char flags) {
        return (flags & 1) == 0;
      }));
}

} // namespace tessera::runtime
