// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/populate_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace tessera::runtime {

namespace {

// A multiple of huge pages, of which each is populated by one thread.
constexpr size_t kPopulateChunk = size_t{64} << 20;

constexpr int kPopulateWrite = 23; // MADV_POPULATE_WRITE, of newer headers

void populate_chunk(std::byte* data, size_t bytes) {
  if (::madvise(data, bytes, kPopulateWrite) != 0 && errno == EINVAL) {
    detail::touch_pages(data, bytes);
  }
}

} // namespace

void detail::touch_pages(void* data, size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto* const bytes_of_pages = static_cast<volatile std::byte*>(data);
  for (size_t at = 0; at < bytes; at += page) {
    bytes_of_pages[at] = bytes_of_pages[at];
  }
}

void populate_memory(void* data, size_t bytes, ThreadPool& pool) {
  const auto chunks =
      static_cast<int64_t>((bytes + kPopulateChunk - 1) / kPopulateChunk);
  const int64_t threads = std::clamp(pool.threads(), 1, kMostPopulatingThreads);
  pool.run(std::min(threads, chunks), [&](int64_t thread) {
    for (int64_t chunk = thread; chunk < chunks; chunk += threads) {
      const size_t begin = static_cast<size_t>(chunk) * kPopulateChunk;
      populate_chunk(
          static_cast<std::byte*>(data) + begin,
          std::min(kPopulateChunk, bytes - begin));
    }
  });
}

} // namespace tessera::runtime
