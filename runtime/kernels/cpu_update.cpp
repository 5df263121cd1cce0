// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cpu_update.h"

#include "tessera/runtime/threads/thread_pool.h"

#include <algorithm>
#include <atomic>

namespace tessera::runtime {

namespace {

// Below this, waking a thread takes longer than the work.
constexpr int64_t kSmallNumel = 1 << 15;

struct Chunk {
  size_t update;
  int64_t begin;
  int64_t end;
};

std::vector<Chunk> chunks_of(const std::vector<CpuUpdate>& updates) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < updates.size(); ++i) {
    for (int64_t at = 0; at < updates[i].numel; at += kUpdateChunk) {
      chunks.push_back({i, at, std::min(at + kUpdateChunk, updates[i].numel)});
    }
  }
  return chunks;
}

bool is_small(const std::vector<CpuUpdate>& updates) {
  int64_t numel = 0;
  for (const CpuUpdate& update : updates) {
    numel += update.numel;
  }
  return numel <= kSmallNumel;
}

} // namespace

bool run_cpu_updates(const std::vector<CpuUpdate>& updates) {
  const std::vector<Chunk> chunks = chunks_of(updates);
  std::atomic<bool> finite{true};
  const auto run_one = [&](int64_t task) {
    const Chunk& chunk = chunks[static_cast<size_t>(task)];
    if (!updates[chunk.update].range(chunk.begin, chunk.end)) {
      finite = false;
    }
  };
  const auto count = static_cast<int64_t>(chunks.size());
  if (is_small(updates)) {
    for (int64_t i = 0; i < count; ++i) {
      run_one(i);
    }
  } else {
    update_pool().run(count, run_one);
  }
  return finite;
}

} // namespace tessera::runtime
