// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_queue.h"

#include "tessera/runtime/comm/collective_error.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime {

namespace {

// How often a sleeping thread checks that the processes of the peers are alive.
constexpr std::chrono::milliseconds kLookInterval{100};
// Time to spin before sleeping; about the cost of going to sleep and waking up.
constexpr std::chrono::microseconds kSpin{10};

} // namespace

ShmQueue::ShmQueue(
    ShmRegion region,
    ShmPeers peers,
    int rank,
    std::vector<int> job_ranks)
    : region_(std::move(region)),
      peers_(std::move(peers)),
      job_ranks_(std::move(job_ranks)),
      port_{
          region_,
          peers_,
          rank,
          static_cast<int>(job_ranks_.size()),
          job_ranks_},
      local_(region_.rank(rank)),
      thread_([this] { run(); }) {}

ShmQueue::~ShmQueue() {
  abort("the communicator is gone");
  thread_.join();
}

void ShmQueue::abort(const std::string& why) {
  const Lock lock(mutex_);
  closing_ = true;
  // Before any tensor is released: see ShmQueue::consume().
  local_.left = 1;
  ring_peers();
  fail(std::make_exception_ptr(Error(why)));
}

ShmQueue::Ticket ShmQueue::push(std::unique_ptr<ShmOperation> operation) {
  const Lock lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  drop_finished();
  const bool direct = operation->direct();
  entries_.push_back({std::move(operation), issued_turns_});
  issued_turns_ = entries_.back().end_turn();
  publish();
  // A small operation that has been published is not urgent: no rank waits for
  // this one.
  if (waiting_threads_ == 0 && (direct || published_turns_ < issued_turns_)) {
    work_there_.notify_one();
  }
  return {issued_turns_, direct};
}

uint64_t ShmQueue::taken_by_all() const {
  uint64_t turns = local_.consumed;
  for (int r = 0; r < port_.ranks; ++r) {
    turns = std::min(turns, region_.rank(r).consumed.load());
  }
  return turns;
}

bool ShmQueue::is_done(const Ticket& ticket) const {
  return local_.consumed >= ticket.end_turn &&
         (!ticket.direct || taken_by_all() >= ticket.end_turn);
}

bool ShmQueue::is_over(const Ticket& ticket) const {
  if (is_done(ticket)) {
    return true;
  }
  const Lock lock(mutex_);
  return failure_ != nullptr;
}

std::exception_ptr ShmQueue::failure_of(const Ticket& ticket) const {
  const Lock lock(mutex_);
  return is_done(ticket) ? nullptr : failure_;
}

bool ShmQueue::wait(
    const Ticket& ticket,
    std::chrono::steady_clock::time_point deadline) {
  Lock lock(mutex_);
  ++waiting_threads_;
  bool over = false;
  while (true) {
    over = failure_ || is_done(ticket);
    if (over || std::chrono::steady_clock::now() >= deadline) {
      break;
    }
    advance(lock, ticket.end_turn, deadline);
  }
  --waiting_threads_;
  drop_finished();
  if (waiting_threads_ == 0 && has_local_work()) {
    work_there_.notify_one();
  }
  return over;
}

bool ShmQueue::may_publish(const Entry& entry) const {
  // All ranks must have read the slot, and the results must be ready.
  return published_turns_ < taken_by_all() + kShmRingSlots &&
         (!entry.operation->shows_results() ||
          consumed_turns_ >= entry.first_turn);
}

void ShmQueue::publish() {
  bool published = false;
  for (const Entry& entry : entries_) {
    while (published_turns_ < entry.end_turn()) {
      if (!may_publish(entry)) {
        break;
      }
      entry.operation->publish(
          port_, published_turns_, published_turns_ - entry.first_turn);
      local_.published = ++published_turns_;
      published = true;
    }
    if (published_turns_ < entry.end_turn()) {
      break;
    }
  }
  if (published) {
    ring_peers();
  }
}

bool ShmQueue::has_local_work() const {
  return consumed_turns_ < issued_turns_;
}

void ShmQueue::advance(
    Lock& lock,
    uint64_t awaited_turn,
    std::chrono::steady_clock::time_point deadline) {
  // Read before anything that it announces, so that no ring is missed.
  const uint32_t doorbell = local_.doorbell;
  publish();
  const bool all_shown = [&] {
    for (int r = 0; r < port_.ranks; ++r) {
      if (region_.rank(r).published <= consumed_turns_) {
        return false;
      }
    }
    return true;
  }();
  if (!consuming_ && all_shown) {
    consume(lock);
    return;
  }
  if (taken_by_all() < awaited_turn) {
    sleep(lock, doorbell, awaited_turn, deadline);
  }
}

void ShmQueue::consume(Lock& lock) {
  const auto entry = std::find_if(
      entries_.begin(), entries_.end(), [this](const Entry& candidate) {
        return candidate.end_turn() > consumed_turns_;
      });
  ShmOperation& operation = *entry->operation;
  const uint64_t turn = consumed_turns_;
  const uint64_t chunk = turn - entry->first_turn;
  consuming_ = true;
  std::string failure;
  lock.unlock();
  try {
    operation.consume(port_, turn, chunk);
    for (int r = 0; operation.direct() && r < port_.ranks; ++r) {
      // The peer may have released the memory while it was read.
      TESSERA_CHECK(
          region_.rank(r).left == 0 || r == port_.rank,
          "{}",
          lost_peer_text(port_.in_job(r), /*left=*/true));
    }
  } catch (const std::exception& error) {
    failure = error.what();
    for (int r = 0; r < port_.ranks; ++r) {
      if (r != port_.rank && !peers_.is_alive(r)) {
        failure = lost_peer_text(port_.in_job(r), /*left=*/false);
      }
    }
  }
  lock.lock();
  consuming_ = false;
  if (!failure.empty()) {
    fail_for_all(failure);
  } else {
    local_.consumed = ++consumed_turns_;
    ring_peers();
    publish();
  }
  // Wakes the other threads of this rank.
  ring(local_);
}

void ShmQueue::sleep(
    Lock& lock,
    uint32_t doorbell,
    uint64_t awaited_turn,
    std::chrono::steady_clock::time_point deadline) {
  look_for_lost_peers(awaited_turn, /*processes=*/false);
  if (failure_) {
    return;
  }
  lock.unlock();
  const auto start = std::chrono::steady_clock::now();
  const auto end = std::min(deadline, start + kLookInterval);
  while (local_.doorbell == doorbell &&
         std::chrono::steady_clock::now() < start + kSpin) {
  }
  local_.sleepers.fetch_add(1);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - start);
  futex_wait(
      local_.doorbell, doorbell, std::max(1, static_cast<int>(left.count())));
  local_.sleepers.fetch_sub(1);
  lock.lock();
  if (local_.doorbell == doorbell) {
    look_for_lost_peers(awaited_turn, /*processes=*/true);
  }
}

void ShmQueue::look_for_lost_peers(uint64_t awaited_turn, bool processes) {
  for (int r = 0; r < port_.ranks; ++r) {
    if (r == port_.rank) {
      continue;
    }
    const ShmRank& peer = region_.rank(r);
    const bool left = peer.left != 0;
    const bool lost = left || (processes && !peers_.is_alive(r));
    // What a peer did before it was lost still counts.
    if (lost &&
        (peer.published < awaited_turn || peer.consumed < awaited_turn)) {
      fail_for_all(lost_peer_text(port_.in_job(r), left));
      return;
    }
  }
}

void ShmQueue::fail_for_all(const std::string& reason) {
  // A rank that leaves because of an error is not the cause of that error.
  fail(std::make_exception_ptr(CollectiveError(region_.first_failure(reason))));
}

void ShmQueue::drop_finished() {
  const uint64_t taken = taken_by_all();
  while (!entries_.empty() && !consuming_) {
    const Entry& oldest = entries_.front();
    const uint64_t reached =
        oldest.operation->direct() ? taken : consumed_turns_;
    if (reached < oldest.end_turn()) {
      return;
    }
    entries_.pop_front();
  }
}

void ShmQueue::ring_peers() {
  for (int r = 0; r < port_.ranks; ++r) {
    if (r != port_.rank) {
      ring(region_.rank(r));
    }
  }
}

void ShmQueue::fail(std::exception_ptr why) {
  if (!failure_) {
    failure_ = std::move(why);
  }
  work_there_.notify_one();
  ring(local_);
}

void ShmQueue::run() {
  Lock lock(mutex_);
  while (!closing_) {
    if (failure_ || waiting_threads_ > 0 || !has_local_work()) {
      work_there_.wait(lock);
      continue;
    }
    advance(
        lock, issued_turns_, std::chrono::steady_clock::now() + kLookInterval);
  }
}

} // namespace tessera::runtime
