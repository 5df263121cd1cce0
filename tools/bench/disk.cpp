// SPDX-License-Identifier: Apache-2.0
#include "bench/disk.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/unique_fd.h"
#include "tessera/runtime/io/posix_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace tessera::tools {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBlock = uint64_t{4} << 20;
constexpr size_t kAlignment = 4096;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void fail(const std::filesystem::path& folder, int code) {
  TESSERA_FAIL(
      "bench: cannot measure the disk of '{}': {}; {}",
      folder.string(),
      runtime::detail::errno_text(code),
      runtime::detail::errno_remedy(code));
}

/// An unlinked file, which disappears with its last descriptor.
runtime::UniqueFd open_file(const DiskOptions& options, DiskBandwidth& result) {
  std::string name = (options.folder / ".tessera-bench-XXXXXX").string();
  runtime::UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.is_open()) {
    fail(options.folder, errno);
  }
  runtime::UniqueFd direct(::open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  const int code = errno;
  ::unlink(name.c_str());
  if (direct.is_open()) {
    result.direct = true;
    return direct;
  }
  result.note = "no O_DIRECT (" + runtime::detail::errno_text(code) +
                "): through the page cache, which is written back and dropped";
  return file;
}

struct Free {
  void operator()(std::byte* memory) const {
    std::free(memory);
  }
};
using Block = std::unique_ptr<std::byte, Free>;

/// Incompressible data.
Block make_block() {
  Block block(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBlock)));
  uint64_t state = 0x9E3779B97F4A7C15;
  for (uint64_t i = 0; i < kBlock; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    block.get()[i] = static_cast<std::byte>(state >> 56);
  }
  return block;
}

using Transfer = std::function<ssize_t(std::byte* block, uint64_t offset)>;

/// Transfers blocks 0, 1, ... with several threads, up to `end` or until
/// `seconds` have passed. @return the bytes transferred, from the start of the
/// file.
uint64_t run_threads(
    const DiskOptions& options,
    double seconds,
    uint64_t end,
    const Transfer& transfer) {
  std::vector<Block> blocks;
  for (int i = 0; i < options.threads; ++i) {
    blocks.push_back(make_block());
  }
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{0};
  const auto start = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (const Block& block : blocks) {
      threads.emplace_back([&] {
        while (error == 0 && seconds_since(start) < seconds) {
          const uint64_t offset = next.fetch_add(kBlock);
          if (offset >= end) {
            break;
          }
          for (uint64_t done = 0; done < kBlock && error == 0;) {
            const ssize_t count = transfer(block.get() + done, offset + done);
            if (count > 0) {
              done += static_cast<uint64_t>(count);
            } else if (count == 0 || errno != EINTR) {
              error = count == 0 ? EIO : errno;
            }
          }
        }
      });
    }
  }
  if (error != 0) {
    fail(options.folder, error);
  }
  // Every claimed block has been transferred.
  return std::min(next.load(), end);
}

} // namespace

DiskBandwidth measure_disk(const DiskOptions& options) {
  DiskBandwidth result;
  const runtime::UniqueFd file = open_file(options, result);
  const uint64_t wanted =
      std::max(options.file_bytes / kBlock * kBlock, kBlock);

  auto start = Clock::now();
  result.file_bytes = run_threads(
      options,
      options.seconds / 2,
      wanted,
      [&](std::byte* block, uint64_t offset) {
        return ::pwrite(
            file.get(),
            block,
            kBlock - offset % kBlock,
            static_cast<off_t>(offset));
      });
  if (::fdatasync(file.get()) != 0) {
    fail(options.folder, errno);
  }
  result.write = static_cast<double>(result.file_bytes) / seconds_since(start);

  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  start = Clock::now();
  const uint64_t read_bytes = run_threads(
      options,
      options.seconds / 2,
      result.file_bytes,
      [&](std::byte* block, uint64_t offset) {
        return ::pread(
            file.get(),
            block,
            kBlock - offset % kBlock,
            static_cast<off_t>(offset));
      });
  result.read = static_cast<double>(read_bytes) / seconds_since(start);
  return result;
}

} // namespace tessera::tools
