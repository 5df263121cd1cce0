// SPDX-License-Identifier: Apache-2.0
// Everything that a disk, a limit or the system can refuse: an error that says
// what, where and what to do, or another way that gives the same bytes.
#include "offload/stores/stores.h"

#include "runtime/memory/missing_pages.h"
#include "tessera/runtime/memory/host_pinning.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace tessera::offload::store_faults_test {

namespace {

using namespace tests;

constexpr int64_t kBlock = BlockPipeline::kBlockBytes;
constexpr int64_t kNumel = 3 * kBlock / 4 + 100; // floats; 3 blocks and a bit

std::unique_ptr<runtime::StoredShard> reserve(
    runtime::ShardStore& store,
    int64_t numel = kNumel) {
  return store.reserve(
      "exp_avg of 'layer.1'",
      MemoryPurpose::kOptimizerState,
      numel,
      at::kFloat);
}

at::Tensor values() {
  at::manual_seed(1);
  return at::randn({kNumel});
}

} // namespace

TEST(StoreFaults, DiskFullShowsWhenRoomIsTaken) {
  NvmeFixture nvme;
  nvme.calls.disk_bytes = 8 * kBlock;
  NvmeStore& store = nvme.make();
  const auto fits = reserve(store);
  const auto fits_too = reserve(store);
  expect_parts(
      error_of([&] { reserve(store); }),
      {"memory.nvme_path",
       nvme.folder.path().c_str(),
       "exp_avg of 'layer.1'",
       "No space left on device (errno 28)",
       "bytes are free",
       "free some space"});
  // What has room still works.
  const at::Tensor got = at::empty({kNumel});
  fits->write(values()).wait();
  fits->read(got).wait();
  EXPECT_TRUE(at::equal(got, values()));
}

TEST(StoreFaults, LimitOfNvmeBytes) {
  NvmeFixture nvme(2 * kBlock);
  NvmeStore& store = nvme.make();
  expect_parts(
      error_of([&] { reserve(store); }),
      {"memory.nvme_bytes", "exp_avg of 'layer.1'", "790528", "524288"});
}

TEST(StoreFaults, NoPermissionAndNoFolder) {
  NvmeFixture nvme;
  nvme.calls.create_error = EACCES;
  expect_parts(
      error_of([&] { nvme.make(); }),
      {"memory.nvme_path",
       "Permission denied",
       "check the permissions",
       "another folder"});
  const IoCalls& system = system_io_calls();
  expect_parts(
      error_of([&] {
        NvmeStore({nvme.folder / "absent"}, nvme.memory, nvme.ledger, system);
      }),
      {"absent", "No such file or directory"});
}

TEST(StoreFaults, IoUringForbidden) {
  for (const int code : {EPERM, ENOSYS, ENOMEM}) {
    NvmeFixture nvme;
    nvme.calls.ring_error = code;
    ::testing::internal::CaptureStderr();
    NvmeStore& store = nvme.make();
    const auto shard = reserve(store);
    const at::Tensor got = at::empty({kNumel});
    shard->write(values()).wait();
    shard->read(got).wait();
    EXPECT_TRUE(at::equal(got, values()));
    expect_parts(
        ::testing::internal::GetCapturedStderr(),
        {"io_uring cannot be used", "pread"});
  }
}

TEST(StoreFaults, DirectRefusedWhenItIsFirstUsed) {
  // Some file systems take the flag and refuse the first operation.
  class RefusingCalls : public FaultyCalls {
   public:
    int64_t result_of(const IoOperation&, int64_t result) const override {
      return operations++ == 0 ? -EINVAL : result;
    }
  };
  const TemporaryFolder folder;
  const RefusingCalls calls;
  MemoryLedger ledger;
  HostMemory memory({}, ledger);
  ::testing::internal::CaptureStderr();
  NvmeStore store({folder.path(), std::nullopt}, memory, ledger, calls);
  const bool was_direct = store.file().is_direct();
  const auto shard = reserve(store);
  const at::Tensor got = at::empty({kNumel});
  if (was_direct) {
    shard->write(values()).wait();
    shard->read(got).wait();
    EXPECT_TRUE(at::equal(got, values()));
    EXPECT_FALSE(store.file().is_direct());
  } else { // nothing is left to fall back to
    EXPECT_THROW(shard->write(values()).wait(), Error);
  }
  expect_parts(
      ::testing::internal::GetCapturedStderr(), {"does not support O_DIRECT"});
}

TEST(StoreFaults, ShortReadsAndWritesGoOn) {
  for (const int64_t bytes : {int64_t{4096}, int64_t{300000}, kBlock - 1}) {
    for (const int ring_error : {0, EPERM}) {
      NvmeFixture nvme;
      nvme.calls.ring_error = ring_error;
      nvme.calls.short_bytes = std::max<int64_t>(bytes, kBlock / 32);
      NvmeStore& store = nvme.make();
      const auto shard = reserve(store);
      const at::Tensor got = at::empty({kNumel});
      shard->write(values()).wait();
      shard->read(got).wait();
      EXPECT_TRUE(at::equal(got, values())) << bytes;
    }
  }
}

TEST(StoreFaults, OperationsThatMakeNoProgressEnd) {
  NvmeFixture nvme;
  nvme.calls.short_bytes = 512; // never a whole aligned piece
  NvmeStore& store = nvme.make();
  const auto shard = reserve(store);
  expect_parts(
      error_of([&] { shard->write(values()).wait(); }),
      {"writing", "exp_avg of 'layer.1'", "only 512 of "});
}

TEST(StoreFaults, InputOutputErrors) {
  for (const bool writes : {false, true}) {
    NvmeFixture nvme;
    NvmeStore& store = nvme.make();
    const auto shard = reserve(store);
    const auto neighbour = reserve(store);
    shard->write(values()).wait();
    neighbour->write(values()).wait();
    nvme.calls.fail_at = kBlock + 5; // in the second block
    nvme.calls.fail_writes = writes;
    const at::Tensor got = at::empty({kNumel});
    expect_parts(
        error_of([&] {
          if (writes) {
            shard->write(values()).wait();
          } else {
            shard->read(got).wait();
          }
        }),
        {writes ? "writing" : "reading",
         "exp_avg of 'layer.1'",
         "offset 262144",
         nvme.folder.path().c_str(),
         "Input/output error (errno 5)",
         "check the disk",
         "last checkpoint"});
    nvme.calls.fail_at.reset();
    if (writes) {
      // Nobody reads what was half written, even if nobody had waited.
      expect_parts(error_of([&] { shard->read(got).wait(); }), {"errno 5"});
      shard->write(values()).wait();
    }
    shard->read(got).wait();
    EXPECT_TRUE(at::equal(got, values()));
    neighbour->read(got).wait();
    EXPECT_TRUE(at::equal(got, values()));
  }
}

TEST(StoreFaults, AFailedWriteThatNobodyWaitsForIsLoggedAndRemembered) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  const auto shard = reserve(store);
  nvme.calls.fail_at = 0;
  nvme.calls.fail_writes = true;
  ::testing::internal::CaptureStderr();
  { const runtime::PendingTransfer forgotten = shard->write(values()); }
  expect_parts(
      ::testing::internal::GetCapturedStderr(),
      {"never waited for", "errno 5"});
  EXPECT_THROW(shard->read(at::empty({kNumel})).wait(), Error);
}

TEST(StoreFaults, TruncatedInMidRun) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  const auto shard = reserve(store);
  shard->write(values()).wait();
  ASSERT_EQ(::ftruncate(nvme.calls.last_fd, kBlock), 0);
  const at::Tensor got = at::empty({kNumel});
  expect_parts(
      error_of([&] { shard->read(got).wait(); }),
      {"truncated to 262144", "last checkpoint"});
  expect_parts(error_of([&] { shard->write(values()).wait(); }), {"truncated"});
  // Grown again, it is as long as it was and has zeros in it.
  ASSERT_EQ(::ftruncate(nvme.calls.last_fd, 8 * kBlock), 0);
  expect_parts(
      error_of([&] {
        reserve(store)->write(values()).wait();
        shard->write(values()).wait();
        ASSERT_EQ(::ftruncate(nvme.calls.last_fd, kBlock), 0);
        ASSERT_EQ(::ftruncate(nvme.calls.last_fd, 8 * kBlock), 0);
        shard->read(got).wait();
      }),
      {"checksum", "last checkpoint"});
}

TEST(StoreFaults, OverwrittenInMidRun) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  const auto shard = reserve(store);
  shard->write(values()).wait();
  const std::vector<char> foreign(4096, 'x');
  // Through another descriptor, as another process would.
  const std::string path =
      "/proc/self/fd/" + std::to_string(nvme.calls.last_fd);
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::pwrite(fd, foreign.data(), foreign.size(), 2 * kBlock), 4096);
  ::fsync(fd);
  ::close(fd);
  const at::Tensor got = at::empty({kNumel});
  expect_parts(
      error_of([&] { shard->read(got).wait(); }),
      {"checksum differs", "offset 524288"});
}

TEST(StoreFaults, HostBudgetTooSmall) {
  MemoryLedger ledger;
  HostMemory memory({.limit_bytes = 3 << 20}, ledger);
  HostStore store(memory);
  const auto first = reserve(store, 1 << 18);
  const auto second = reserve(store, 1 << 18);
  expect_parts(
      error_of([&] { reserve(store, (1 << 18) + 1); }),
      {"exp_avg of 'layer.1'",
       "1052672 bytes are needed",
       "memory.host_bytes (3145728) only 1048576 are left",
       "Raise memory.host_bytes"});
  EXPECT_NO_THROW(reserve(store, 1 << 18));
}

TEST(StoreFaults, TheSystemHasNotSoMuch) {
  MemoryLedger ledger;
  HostMemory memory({}, ledger);
  HostStore store(memory);
  expect_parts(
      error_of([&] { reserve(store, int64_t{1} << 50); }),
      {"the system refused", "memory.host_bytes"});
}

TEST(StoreFaults, PinningRefused) {
  static int calls = 0;
  const runtime::HostPinning before = runtime::host_pinning();
  runtime::register_host_pinning(
      {[](void*, size_t) {
         ++calls;
         return std::string("out of locked memory");
       },
       [](void*) { FAIL() << "nothing was pinned"; },
       nullptr});
  ::testing::internal::CaptureStderr();
  {
    MemoryLedger ledger;
    HostMemory memory({.device = c10::Device(c10::kCUDA, 0)}, ledger);
    HostStore store(memory);
    const auto a = reserve(store);
    const auto b = reserve(store);
    a->in_place().fill_(1);
    EXPECT_EQ(b->in_place().sum().item<float>(), 0);
  }
  EXPECT_EQ(calls, 1); // it is not tried again
  const std::string log = ::testing::internal::GetCapturedStderr();
  expect_parts(log, {"cannot be pinned", "out of locked memory", "ulimit -l"});
  EXPECT_EQ(log.find("cannot be pinned"), log.rfind("cannot be pinned"));
  runtime::register_host_pinning(before);
}

TEST(StoreFaults, PinnedMemoryHasItsPagesAndIsUnpinned) {
  static int pinned = 0;
  static size_t missing = 0;
  const runtime::HostPinning before = runtime::host_pinning();
  runtime::register_host_pinning(
      {[](void* data, size_t bytes) {
         ++pinned;
         missing += runtime::missing_pages(data, bytes);
         return std::string();
       },
       [](void*) { --pinned; },
       nullptr});
  {
    MemoryLedger ledger;
    HostMemory memory({.device = c10::Device(c10::kCUDA, 0)}, ledger);
    HostStore store(memory);
    const auto a = reserve(store);
    EXPECT_EQ(pinned, 1);
  }
  EXPECT_EQ(missing, 0);
  EXPECT_EQ(pinned, 0);
  runtime::register_host_pinning(before);
}

} // namespace tessera::offload::store_faults_test
