// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stores of every kind, for tests.

#include "support/expect_error.h"
#include "support/temporary_folder.h"

#include "tessera/offload/stores/host_store.h"
#include "tessera/offload/stores/nvme_store.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>

namespace tessera::tests {

/// System calls that fail when they are told to.
class FaultyCalls : public offload::IoCalls {
 public:
  int create(const char* path) const override {
    return create_error != 0 ? -create_error : offload::IoCalls::create(path);
  }
  int allocate(int fd, int64_t bytes) const override {
    last_fd = fd;
    return bytes > disk_bytes ? ENOSPC : offload::IoCalls::allocate(fd, bytes);
  }
  int set_direct(int fd, bool direct) const override {
    return direct && refuse_direct ? EINVAL
                                   : offload::IoCalls::set_direct(fd, direct);
  }
  int make_ring(unsigned entries, io_uring* ring) const override {
    return ring_error != 0 ? -ring_error
                           : offload::IoCalls::make_ring(entries, ring);
  }
  int64_t result_of(const offload::IoOperation& operation, int64_t result)
      const override {
    ++operations;
    if (fail_at && operation.is_write == fail_writes &&
        operation.offset <= *fail_at &&
        *fail_at < operation.offset + operation.bytes) {
      return -io_error;
    }
    if (short_bytes > 0 && result > short_bytes) {
      return short_bytes;
    }
    return result;
  }

  int create_error = 0;
  int64_t disk_bytes = int64_t{1} << 40;
  bool refuse_direct = false;
  int ring_error = 0;
  int io_error = EIO;
  std::optional<int64_t> fail_at; ///< offset in the file
  bool fail_writes = false;
  int64_t short_bytes = 0; ///< above 0: no operation moves more
  mutable std::atomic<int> operations{0};
  mutable std::atomic<int> last_fd{-1};
};

/// An NVMe store over a temporary folder.
struct NvmeFixture {
  explicit NvmeFixture(std::optional<int64_t> limit_bytes = std::nullopt)
      : memory({}, ledger), limit(limit_bytes) {}

  /// Once `calls` are as they should be.
  offload::NvmeStore& make() {
    store.emplace(
        offload::NvmeOptions{folder.path(), limit}, memory, ledger, calls);
    return *store;
  }

  TemporaryFolder folder;
  FaultyCalls calls;
  MemoryLedger ledger;
  offload::HostMemory memory;
  std::optional<int64_t> limit;
  std::optional<offload::NvmeStore> store;
};

inline void expect_parts(
    const std::string& message,
    std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\nfound: " << message;
  }
}

} // namespace tessera::tests
