// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_region.h"

#include "tessera/runtime/core/error.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <random>
#include <sstream>
#include <utility>

namespace tessera::runtime {

namespace {

constexpr const char* kName = "tessera";
constexpr int64_t kRegionBytes = 16 << 20; // at most, for any number of ranks
constexpr int64_t kLargestSlot = 128 << 10;
constexpr int64_t kSmallestSlot = 4 << 10;

int64_t slot_bytes_for(int ranks) {
  const auto slots = static_cast<int64_t>(kShmRingSlots) * ranks;
  const int64_t share = kRegionBytes / slots / kSmallestSlot * kSmallestSlot;
  return std::clamp(share, kSmallestSlot, kLargestSlot);
}

} // namespace

/// The header before the ranks' parts.
struct alignas(64) ShmRegion::Header {
  enum FailureState : uint32_t { kNone, kBeingNoted, kNoted };

  uint64_t nonce;
  std::atomic<uint32_t> failure_state;
  char failure[500];
};

int64_t ShmRegion::payload_begin(int ranks) {
  constexpr int64_t kPage = 4096;
  const auto end = static_cast<int64_t>(sizeof(Header)) +
                   ranks * static_cast<int64_t>(sizeof(ShmRank));
  return (end + kPage - 1) / kPage * kPage;
}

int64_t ShmRegion::region_bytes(int ranks) {
  return payload_begin(ranks) +
         slot_bytes_for(ranks) * ranks * static_cast<int64_t>(kShmRingSlots);
}

/// True if `path` leads to what create() has made. In another process id
/// namespace it could be an unrelated file.
bool ShmRegion::is_region(const std::string& path, int ranks) {
  std::string target(64, '\0');
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  struct stat found {};
  return length > 0 && target.rfind(std::string("/memfd:") + kName, 0) == 0 &&
         ::stat(path.c_str(), &found) == 0 &&
         found.st_size == region_bytes(ranks);
}

ShmRegion::ShmRegion(UniqueFd file, int ranks)
    : file_(std::move(file)),
      ranks_(ranks),
      slot_bytes_(slot_bytes_for(ranks)) {
  const int64_t bytes = region_bytes(ranks);
  void* base = ::mmap(
      nullptr,
      static_cast<size_t>(bytes),
      PROT_READ | PROT_WRITE,
      MAP_SHARED,
      file_.get(),
      0);
  TESSERA_CHECK(
      base != MAP_FAILED,
      "cannot map {} bytes of shared memory: {}",
      bytes,
      std::strerror(errno));
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
}

ShmRegion::ShmRegion(ShmRegion&& other) noexcept
    : file_(std::move(other.file_)),
      ranks_(other.ranks_),
      slot_bytes_(other.slot_bytes_),
      bytes_(other.bytes_),
      base_(std::exchange(other.base_, nullptr)) {}

ShmRegion::~ShmRegion() {
  if (base_ != nullptr) {
    ::munmap(base_, static_cast<size_t>(bytes_));
  }
}

ShmRegion ShmRegion::create(int ranks) {
  UniqueFd file(::memfd_create(kName, MFD_CLOEXEC));
  TESSERA_CHECK(
      file.is_open(), "memfd_create failed: {}", std::strerror(errno));
  const int64_t bytes = region_bytes(ranks);
  const int full = ::posix_fallocate(file.get(), 0, bytes);
  TESSERA_CHECK(
      full == 0,
      "there is no room for {} bytes of shared memory: {}",
      bytes,
      std::strerror(full));
  ShmRegion region(std::move(file), ranks);
  // Fresh pages are zero, the initial value of the counters.
  std::random_device random;
  region.header().nonce = (static_cast<uint64_t>(random()) << 32) | random();
  return region;
}

ShmRegion ShmRegion::attach(const std::string& address, int ranks) {
  int64_t pid = 0;
  int fd = 0;
  uint64_t nonce = 0;
  std::istringstream(address) >> pid >> fd >> nonce;
  const std::string path =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  TESSERA_CHECK(
      is_region(path, ranks),
      "{} is not the shared memory of rank 0; the ranks are in different PID namespaces, or are not permitted to access each other",
      path);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  TESSERA_CHECK(
      file.is_open(),
      "cannot open the shared memory of another rank, {}: {}",
      path,
      std::strerror(errno));
  ShmRegion region(std::move(file), ranks);
  TESSERA_CHECK(
      region.nonce() == nonce,
      "{} is not the shared memory that rank 0 created; the ranks are in different PID namespaces",
      path);
  return region;
}

std::string ShmRegion::address() const {
  std::ostringstream text;
  text << ::getpid() << " " << file_.get() << " " << nonce();
  return text.str();
}

uint64_t ShmRegion::nonce() const {
  return header().nonce;
}

ShmRegion::Header& ShmRegion::header() const {
  return *reinterpret_cast<Header*>(base_);
}

std::string ShmRegion::first_failure(const std::string& reason) const {
  Header& shared = header();
  uint32_t expected = Header::kNone;
  if (shared.failure_state.compare_exchange_strong(
          expected, Header::kBeingNoted)) {
    const size_t length =
        reason.copy(shared.failure, sizeof(shared.failure) - 1);
    shared.failure[length] = '\0';
    shared.failure_state = Header::kNoted;
  }
  return shared.failure_state == Header::kNoted ? shared.failure : reason;
}

ShmRank& ShmRegion::rank(int r) const {
  return reinterpret_cast<ShmRank*>(base_ + sizeof(Header))[r];
}

std::byte* ShmRegion::payload(int r, uint64_t turn) const {
  const auto slot = static_cast<int64_t>(turn % kShmRingSlots);
  return base_ + payload_begin(ranks_) +
         (r * static_cast<int64_t>(kShmRingSlots) + slot) * slot_bytes_;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int timeout_ms) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ring(ShmRank& rank) {
  rank.doorbell.fetch_add(1);
  if (rank.sleepers.load() > 0) {
    futex_wake_all(rank.doorbell);
  }
}

} // namespace tessera::runtime
