// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_peers.h"

#include "tessera/runtime/core/error.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace tessera::runtime {

namespace {

// Values of ShmRank::state, in ascending order.
enum State : uint32_t {
  kAbsent,
  kPresent,
  kCannotWatch,
  kCannotRead,
  kCanRead
};

/// pread() from another process.
/// @return the bytes read, or -1 with errno.
ssize_t read_process(int64_t pid, uint64_t address, void* to, size_t bytes) {
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  return ::process_vm_readv(
      static_cast<pid_t>(pid), &local, 1, &remote, 1, /*flags=*/0);
}

class Meeting {
 public:
  Meeting(const ShmRegion& region, int ranks, std::chrono::milliseconds timeout)
      : region_(region),
        ranks_(ranks),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

  /// Blocks until every rank has reached `state`.
  void wait_for(State state) const {
    for (int r = 0; r < ranks_; ++r) {
      while (region_.rank(r).state < state) {
        TESSERA_CHECK(
            std::chrono::steady_clock::now() < deadline_,
            "rank {} did not attach to the shared memory within {} s; it may have exited",
            r,
            std::chrono::duration_cast<std::chrono::seconds>(timeout_).count());
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }

 private:
  const ShmRegion& region_;
  int ranks_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace

ShmPeers::ShmPeers(const ShmRegion& region, const Options& options)
    : pids_(static_cast<size_t>(options.ranks)),
      handles_(static_cast<size_t>(options.ranks)) {
  const int rank = options.rank;
  const int ranks = options.ranks;
  const Meeting meeting(region, ranks, options.timeout);
  const uint64_t probe = region.nonce();
  ShmRank& self_rank = region.rank(rank);
  self_rank.pid = ::getpid();
  self_rank.probe_address = reinterpret_cast<uint64_t>(&probe);
  self_rank.state = kPresent;
  meeting.wait_for(kPresent);

  State state = options.read_directly ? kCanRead : kCannotRead;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    pids_[i] = region.rank(r).pid;
    if (r == rank) {
      continue;
    }
    handles_[i].reset(static_cast<int>(::syscall(SYS_pidfd_open, pids_[i], 0)));
    if (!handles_[i].is_open()) {
      state = kCannotWatch;
      break;
    }
    uint64_t found = 0;
    const ssize_t count = read_process(
        pids_[i], region.rank(r).probe_address, &found, sizeof(found));
    if (count != sizeof(found) || found != probe) {
      state = kCannotRead;
    }
  }
  self_rank.state = state;
  // Until then the others read `probe`.
  meeting.wait_for(kCannotWatch);
  can_read_ = true;
  for (int r = 0; r < ranks; ++r) {
    const uint32_t peer_state = region.rank(r).state;
    TESSERA_CHECK(
        peer_state != kCannotWatch,
        "rank {} cannot watch the other ranks' processes (pidfd_open, which needs Linux 5.3 or later)",
        r);
    can_read_ = can_read_ && peer_state == kCanRead;
  }
}

bool ShmPeers::is_alive(int peer) const {
  pollfd handle{handles_[static_cast<size_t>(peer)].get(), POLLIN, 0};
  return ::poll(&handle, 1, /*timeout=*/0) == 0;
}

void ShmPeers::read(int peer, uint64_t address, std::byte* to, int64_t bytes)
    const {
  while (bytes > 0) {
    const ssize_t count = read_process(
        pids_[static_cast<size_t>(peer)],
        address,
        to,
        static_cast<size_t>(bytes));
    TESSERA_CHECK(
        count > 0,
        "rank {}'s memory can no longer be read: {}",
        peer,
        count < 0 ? std::strerror(errno) : "end of its memory");
    address += static_cast<uint64_t>(count);
    to += count;
    bytes -= count;
  }
}

} // namespace tessera::runtime
