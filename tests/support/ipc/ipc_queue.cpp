// SPDX-License-Identifier: Apache-2.0
#include "support/ipc/ipc_queue.h"

#include "tessera/runtime/comm/collective_error.h"
#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/missing_ranks.h"
#include "tessera/runtime/comm/shm_bytes.h"
#include "tessera/runtime/comm/shm_meeting.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime::ipc {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatchInterval{100};
constexpr std::chrono::milliseconds kReleaseInterval{5};
constexpr std::chrono::microseconds kQueuePoll{100};
// How long a failed queue waits for its streams to run dry, and a rank for its
// peers to close its buffer.
constexpr std::chrono::milliseconds kFarewell{1000};
// What a release adds: more than the turns that any stream waits for.
constexpr uint32_t kRelease = 1u << 30;
constexpr int64_t kPage = 4096;

int64_t rounded_up(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

/// A flag's value for a number of turns.
uint32_t flag_value(uint64_t turns) {
  return static_cast<uint32_t>(turns);
}

/// What a rank tells the others from host to host.
struct alignas(kShmLine) HostNote {
  std::atomic<uint64_t> count; ///< times that it has stated numbers
  /// By turns, as peers may be one behind; for each rank.
  std::atomic<int64_t> numbers[2][IpcQueue::kMostRanks];
  std::atomic<uint32_t> closed; ///< 1: it has closed its peers' buffers
};

HostNote& note_of(const ShmRegion& region, int rank) {
  return reinterpret_cast<HostNote*>(region.payload(0, 1))[rank];
}

} // namespace

IpcQueue::IpcQueue(
    c10d::Store& store,
    int rank,
    int size,
    const IpcOptions& options,
    std::unique_ptr<StreamDriver> driver)
    : options_(options),
      rank_(rank),
      size_(size),
      job_ranks_(job_ranks(store, size)),
      driver_(std::move(driver)),
      region_(meet(store, rank, size)),
      peers_(region_, {rank, size, /*read_directly=*/false, options.timeout}),
      staging_(static_cast<size_t>(size)) {
  try {
    connect(store);
  } catch (...) {
    disconnect();
    throw;
  }
  watcher_ = std::thread([this] { watch(); });
}

void IpcQueue::connect(c10d::Store& store) {
  const auto key = [](int r) { return "staging/" + std::to_string(r); };
  const auto local = static_cast<size_t>(rank_);
  all_succeed(store, "allocated", rank_, size_, [&] {
    TESSERA_CHECK(
        size_ <= kMostRanks,
        "{} ranks share a device; at most {} can",
        size_,
        kMostRanks);
    const int64_t row =
        rounded_up(size_ * static_cast<int64_t>(sizeof(PeerFlags)), kShmLine);
    const int64_t flag_bytes = rounded_up(size_ * row, kPage);
    TESSERA_CHECK(
        options_.slot_bytes >= size_ * kPage,
        "slots of {} bytes are too small for {} ranks",
        options_.slot_bytes,
        size_);
    TESSERA_CHECK(
        flag_bytes <= region_.slot_bytes() &&
            size_ * static_cast<int64_t>(sizeof(HostNote)) <=
                region_.slot_bytes(),
        "{} ranks have too little shared memory",
        size_);
    driver_->register_flags(region_.payload(0, 0), flag_bytes);
    flags_registered_ = true;
    staging_[local] = driver_->allocate(kSlots * options_.slot_bytes);
    store.set(key(rank_), to_bytes(driver_->export_array(staging_[local])));
  });
  all_succeed(store, "opened", rank_, size_, [&] {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) {
        staging_[static_cast<size_t>(r)] =
            driver_->open_array(to_text(store.get(key(r))));
      }
    }
  });
}

IpcQueue::~IpcQueue() {
  const auto peers_are_finished = [this] {
    const uint32_t issued = flag_value(issued_turns_);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && region_.rank(r).left == kHere && peers_.is_alive(r) &&
          !has_reached(flags(rank_, r).consumed, issued)) {
        return false;
      }
    }
    return true;
  };
  while (!has_failed() && (!is_dry() || !peers_are_finished())) {
    std::this_thread::sleep_for(kQueuePoll);
  }
  // The watcher ends the waits of a queue that has failed.
  const auto deadline = Clock::now() + kFarewell;
  while (!is_dry() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kQueuePoll);
  }
  if (!has_failed()) {
    region_.rank(rank_).left = kLeft;
  }
  {
    const Lock lock(mutex_);
    closing_ = true;
    closing_there_.notify_one();
  }
  watcher_.join();
  if (is_dry()) {
    disconnect();
  }
  // Else a stream still uses the memory, which is left to the end of the
  // process.
}

void IpcQueue::disconnect() noexcept {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && staging_[static_cast<size_t>(r)] != nullptr) {
      driver_->close_array(staging_[static_cast<size_t>(r)]);
    }
  }
  if (flags_registered_) {
    driver_->unregister_flags(region_.payload(0, 0));
  }
  note_of(region_, rank_).closed = 1;
  std::byte* local = staging_[static_cast<size_t>(rank_)];
  if (local == nullptr) {
    return;
  }
  const auto deadline = Clock::now() + kFarewell;
  for (int r = 0; r < size_; ++r) {
    while (note_of(region_, r).closed == 0 && peers_.is_alive(r)) {
      if (Clock::now() > deadline) {
        return; // a peer may still read it
      }
      std::this_thread::sleep_for(kQueuePoll);
    }
  }
  driver_->free(local);
}

IpcQueue::PeerFlags& IpcQueue::flags(int waiter, int peer) const {
  const int64_t row =
      rounded_up(size_ * static_cast<int64_t>(sizeof(PeerFlags)), kShmLine);
  return reinterpret_cast<PeerFlags*>(
      region_.payload(0, 0) + waiter * row)[peer];
}

std::byte* IpcQueue::slot(int rank, uint64_t turn) const {
  return staging_[static_cast<size_t>(rank)] +
         static_cast<int64_t>(turn % kSlots) * options_.slot_bytes;
}

uint64_t IpcQueue::ended_turns() const {
  const uint32_t ended = done().load();
  const uint64_t issued = issued_turns_;
  return issued - (flag_value(issued) - ended);
}

bool IpcQueue::has_failed() const {
  const Lock lock(mutex_);
  return failure_ != nullptr;
}

void IpcQueue::compare_with_peers(const ShmMessage& message) {
  // Before the peers' are read: of two ranks, one at least sees the other's.
  ShmRank& local = region_.rank(rank_);
  local.messages[issued_ % kShmRingSlots] = message;
  local.published = issued_ + 1;
  for (int r = 0; r < size_; ++r) {
    const ShmRank& peer = region_.rank(r);
    if (r == rank_ || peer.published <= issued_) {
      continue; // it will look itself
    }
    const ShmMessage peer_message = peer.messages[issued_ % kShmRingSlots];
    // A rank that is far ahead has written over it.
    if (peer.published < issued_ + kShmRingSlots) {
      check_same_collective(
          message,
          job_ranks_[static_cast<size_t>(rank_)],
          peer_message,
          job_ranks_[static_cast<size_t>(r)]);
    }
  }
}

void IpcQueue::publish(
    StreamDriver::Stream stream,
    const IpcPlan& plan,
    uint64_t turn,
    uint64_t chunk) {
  if (turn >= kSlots) {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) {
        driver_->wait_flag(
            stream, flags(rank_, r).consumed, flag_value(turn + 1 - kSlots));
      }
    }
  }
  plan.publish(stream, slot(rank_, turn), chunk);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      driver_->write_flag(
          stream, flags(r, rank_).published, flag_value(turn + 1));
    }
  }
}

void IpcQueue::consume(
    StreamDriver::Stream stream,
    const IpcPlan& plan,
    uint64_t turn,
    uint64_t chunk) {
  IpcPlan::Slots slots;
  for (int r = 0; r < size_; ++r) {
    slots.push_back(slot(r, turn));
    if (r != rank_ && (!plan.reads || plan.reads(r, chunk))) {
      driver_->wait_flag(
          stream, flags(rank_, r).published, flag_value(turn + 1));
    }
  }
  plan.consume(stream, slots, chunk);
  for (int r = 0; r < size_; ++r) {
    // Its own: done().
    driver_->write_flag(stream, flags(r, rank_).consumed, flag_value(turn + 1));
  }
}

uint64_t IpcQueue::issue(const IpcPlan& plan) {
  const Lock order(issue_mutex_);
  if (has_failed()) {
    return issued_turns_ + 1;
  }
  try {
    compare_with_peers(plan.message);
    const auto stream = driver_->current_stream();
    const uint64_t first = issued_turns_;
    if (issued_ > 0 && stream != last_stream_) {
      driver_->wait_flag(stream, done(), flag_value(first));
    }
    last_stream_ = stream;
    ++issued_;
    // From here on a release covers all of its turns.
    issued_turns_ = first + plan.chunks;
    constexpr uint64_t kAhead = kSlots - 1;
    for (uint64_t i = 0; i < plan.chunks + kAhead; ++i) {
      if (i < plan.chunks) {
        publish(stream, plan, first + i, i);
      }
      if (i >= kAhead) {
        consume(stream, plan, first + i - kAhead, i - kAhead);
      }
    }
  } catch (const std::exception& error) {
    // The streams of the ranks are no longer in step.
    fail(error.what());
    return issued_turns_ + 1;
  }
  return issued_turns_;
}

std::vector<std::vector<int64_t>> IpcQueue::exchange_all(
    const std::vector<int64_t>& numbers) {
  const Lock order(issue_mutex_);
  HostNote& local = note_of(region_, rank_);
  const uint64_t self_value = exchanges_++;
  std::copy(numbers.begin(), numbers.end(), local.numbers[self_value % 2]);
  local.count = self_value + 1;
  const auto start = Clock::now();
  std::vector<std::vector<int64_t>> all;
  for (int r = 0; r < size_; ++r) {
    const HostNote& peer_note = note_of(region_, r);
    while (peer_note.count <= self_value) {
      if (has_failed()) {
        return {};
      }
      const bool left = region_.rank(r).left != kHere;
      if ((left || !peers_.is_alive(r)) && peer_note.count <= self_value) {
        fail(lost_peer_text(job_ranks_[static_cast<size_t>(r)], left));
      } else if (Clock::now() - start > options_.timeout) {
        fail(formatted(
            "rank {} has not joined an all-to-all",
            job_ranks_[static_cast<size_t>(r)]));
      }
      std::this_thread::sleep_for(kQueuePoll);
    }
    const auto& row = peer_note.numbers[self_value % 2];
    all.emplace_back(row, row + size_);
  }
  return all;
}

bool IpcQueue::is_over(uint64_t end_turn) const {
  const Lock lock(mutex_);
  return failure_ || ended_turns() >= end_turn;
}

std::exception_ptr IpcQueue::failure_of(uint64_t end_turn) const {
  const Lock lock(mutex_);
  return failure_ && end_turn > sound_turns_ ? failure_ : nullptr;
}

void IpcQueue::follow(uint64_t end_turn) {
  const Lock order(issue_mutex_);
  const auto stream = driver_->current_stream();
  if (stream != last_stream_) {
    driver_->wait_flag(stream, done(), flag_value(end_turn));
  }
}

bool IpcQueue::wait(
    uint64_t end_turn,
    std::chrono::steady_clock::time_point deadline) const {
  while (!is_over(end_turn)) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kQueuePoll);
  }
  return true;
}

void IpcQueue::abort(const std::string& why) {
  if (is_dry()) {
    const Lock lock(mutex_);
    if (!failure_) {
      region_.rank(rank_).left = kLeft;
      failure_ = std::make_exception_ptr(Error(why));
      sound_turns_ = issued_turns_;
    }
    return;
  }
  fail(lost_peer_text(job_ranks_[static_cast<size_t>(rank_)], /*left=*/true));
}

void IpcQueue::fail(const std::string& reason) {
  const Lock lock(mutex_);
  if (failure_) {
    return;
  }
  // Before the peers see that this rank has failed. A rank that fails because
  // of another is not the cause.
  const std::string first = region_.first_failure(reason);
  region_.rank(rank_).left = kFailed;
  failure_ = std::make_exception_ptr(CollectiveError(first));
  sound_turns_ = ended_turns();
  release_waits();
  closing_there_.notify_one();
}

void IpcQueue::release_waits() {
  const uint32_t value = flag_value(issued_turns_) + kRelease;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      flags(rank_, r).published = value;
      flags(rank_, r).consumed = value;
    }
  }
}

std::string IpcQueue::trouble(Clock::duration without_progress) {
  const uint64_t issued = issued_turns_;
  const uint64_t awaited = std::min(ended_turns() + 1, issued);
  std::vector<int> behind;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      continue;
    }
    const uint32_t left = region_.rank(r).left;
    if (left == kFailed) {
      return lost_peer_text(job_ranks_[static_cast<size_t>(r)], /*left=*/true);
    }
    const bool lost = left != kHere || !peers_.is_alive(r);
    const PeerFlags& peer_flags = flags(rank_, r);
    // What a peer did before it was lost still counts.
    if (lost &&
        (!has_reached(peer_flags.published, flag_value(issued)) ||
         (issued > kSlots &&
          !has_reached(peer_flags.consumed, flag_value(issued - kSlots))))) {
      return lost_peer_text(job_ranks_[static_cast<size_t>(r)], left != kHere);
    }
    if (!has_reached(peer_flags.published, flag_value(awaited))) {
      behind.push_back(job_ranks_[static_cast<size_t>(r)]);
    }
  }
  // If none is, this rank itself computes for so long.
  if (behind.empty() || without_progress <= options_.timeout) {
    return {};
  }
  return formatted(
      "nothing has moved for {} s; {} fell behind",
      std::chrono::duration_cast<std::chrono::seconds>(without_progress)
          .count(),
      ranks_text(behind));
}

void IpcQueue::watch() {
  auto moved = Clock::now();
  uint32_t seen = done();
  Lock lock(mutex_);
  while (!closing_) {
    const bool is_releasing = failure_ && !is_dry();
    closing_there_.wait_for(
        lock, is_releasing ? kReleaseInterval : kWatchInterval);
    if (failure_) {
      release_waits();
      continue;
    }
    const uint32_t ended = done();
    if (is_dry() || ended != seen) {
      moved = Clock::now();
      seen = ended;
    }
    lock.unlock();
    const std::string reason = trouble(Clock::now() - moved);
    if (!reason.empty()) {
      fail(reason);
    }
    lock.lock();
  }
}

} // namespace tessera::runtime::ipc
