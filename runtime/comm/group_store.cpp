// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/group_store.h"

#include "tessera/runtime/comm/rank_ends.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/peer_failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

namespace tessera::runtime {

namespace {

using StoreClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
/// Between looks for ranks that have failed or ended.
constexpr milliseconds kLookPause{200};
/// How long the end of the rank that hosts the store may take.
constexpr milliseconds kHostPatience{2000};

constexpr const char* kFailed = "failed";

std::string came_key(int job_rank) {
  return "came/" + std::to_string(job_rank);
}

std::string saw_end_key(int job_rank) {
  return "saw end/" + std::to_string(job_rank);
}

std::string first_line_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

/// The first few, those that ended early before those that failed, perhaps
/// because of these.
std::string text_of_ends(std::vector<RankEnd> ends) {
  std::stable_partition(ends.begin(), ends.end(), [](const RankEnd& end) {
    return end.process && end.process->is_success();
  });
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, ends.size()); ++i) {
    text += (i == 0 ? "" : ". ") + text_of_end(ends[i]);
  }
  return text;
}

GroupStore* group_store(c10d::Store& store) {
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return dynamic_cast<GroupStore*>(
        prefixed->getUnderlyingNonPrefixStore().get());
  }
  return dynamic_cast<GroupStore*>(&store);
}

} // namespace

GroupStore::GroupStore(
    c10::intrusive_ptr<c10d::Store> job,
    Group group,
    milliseconds timeout,
    milliseconds notice_interval)
    : Store(timeout),
      job_(std::move(job)),
      group_(std::move(group)),
      keys_(c10::make_intrusive<c10d::PrefixStore>(group_.key, job_)),
      notice_interval_(notice_interval),
      ends_(RankEnds::of(*job_)) {
  set(came_key(group_.job_ranks[static_cast<size_t>(group_.rank)]),
      to_bytes("1"));
}

GroupStore::GroupStore(
    const GroupStore& other,
    c10::intrusive_ptr<c10d::Store> job)
    : Store(other.timeout_),
      job_(std::move(job)),
      group_(other.group_),
      keys_(c10::make_intrusive<c10d::PrefixStore>(group_.key, job_)),
      notice_interval_(other.notice_interval_),
      ends_(other.ends_) {}

c10::intrusive_ptr<c10d::Store> GroupStore::clone() {
  return c10::intrusive_ptr<GroupStore>::unsafe_steal_from_new(
      new GroupStore(*this, job_->clone()));
}

void GroupStore::report(const std::string& reason) noexcept {
  try {
    if (!keys_->check({kFailed})) {
      const int rank = group_.job_ranks[static_cast<size_t>(group_.rank)];
      keys_->set(
          kFailed, to_bytes("rank " + std::to_string(rank) + ": " + reason));
    }
  } catch (const std::exception&) {
    // The store no longer exists, because the rank that hosts it has ended.
  }
}

std::string GroupStore::end_of_a_rank(milliseconds patience) {
  if (ends_ == nullptr) {
    return {};
  }
  const auto deadline = StoreClock::now() + patience;
  while (true) {
    std::vector<RankEnd> ended = ends_->among(group_.job_ranks);
    if (!ended.empty()) {
      share_look(ended);
      return text_of_ends(std::move(ended));
    }
    if (StoreClock::now() >= deadline) {
      return {};
    }
    std::this_thread::sleep_for(kLongestPause);
  }
}

void GroupStore::fail(const std::string& reason) const {
  blame_peer();
  throw LostRankError(group_.label + " failed: " + reason);
}

void GroupStore::fail_without_store(const c10::Error& error) {
  const std::string end = end_of_a_rank(kHostPatience);
  fail(
      end.empty()
          ? "the store of the job, which rank 0 or its launcher hosts, cannot be reached any more (" +
                first_line_of(error) + ")"
          : end);
}

void GroupStore::check_ranks(const std::vector<std::string>& keys) {
  if (keys_->check({kFailed})) {
    fail(to_text(keys_->get(kFailed)));
  }
  if (ends_ == nullptr) {
    return;
  }
  std::vector<RankEnd> ended = ends_->among(group_.job_ranks);
  // What a rank did before it ended still counts.
  if (ended.empty() || keys_->check(keys)) {
    return;
  }
  share_look(ended);
  fail(text_of_ends(std::move(ended)));
}

void GroupStore::share_look(const std::vector<RankEnd>& ended) {
  const int self = group_.job_ranks[static_cast<size_t>(group_.rank)];
  std::vector<int> others = group_.job_ranks;
  const auto leave_out = [&](const std::vector<RankEnd>& ends) {
    std::erase_if(others, [&](int rank) {
      return std::any_of(ends.begin(), ends.end(), [&](const RankEnd& end) {
        return end.rank == rank;
      });
    });
  };
  std::erase(others, self);
  leave_out(ended);
  const auto deadline = StoreClock::now() + kHostPatience;
  try {
    keys_->set(saw_end_key(self), to_bytes("1"));
    while (self == 0 && !others.empty() && StoreClock::now() < deadline) {
      std::erase_if(others, [this](int rank) {
        return keys_->check({saw_end_key(rank)});
      });
      leave_out(ends_->among(others));
      std::this_thread::sleep_for(kFirstPause);
    }
  } catch (const c10::Error&) {
    // The store is gone: nobody can look any more.
  }
}

std::vector<int> GroupStore::missing_ranks() {
  std::vector<int> missing = group_.job_ranks;
  std::erase_if(
      missing, [this](int rank) { return keys_->check({came_key(rank)}); });
  return missing;
}

void GroupStore::log_wait(std::chrono::seconds waited) {
  const std::vector<int> missing = missing_ranks();
  // One rank speaks for all that wait: the first of those that have come.
  const auto first = std::find_if(
      group_.job_ranks.begin(), group_.job_ranks.end(), [&](int rank) {
        return std::find(missing.begin(), missing.end(), rank) == missing.end();
      });
  if (first - group_.job_ranks.begin() == group_.rank) {
    log_warning(
        "{}: waiting for {} for {} s",
        group_.label,
        missing.empty() ? "the other ranks, which have all come"
                        : ranks_text(missing),
        waited.count());
  }
}

void GroupStore::wait(
    const std::vector<std::string>& keys,
    const milliseconds& timeout) {
  const auto start = StoreClock::now();
  milliseconds pause = kFirstPause;
  StoreClock::duration next_look = kLookPause;
  StoreClock::duration next_notice = notice_interval_;
  try {
    while (!keys_->check(keys)) {
      const auto waited = StoreClock::now() - start;
      const auto seconds =
          std::chrono::duration_cast<std::chrono::seconds>(waited);
      if (waited >= next_look) {
        check_ranks(keys);
        next_look = StoreClock::now() - start + kLookPause;
      }
      if (timeout != kNoTimeout && waited >= timeout) {
        const std::vector<int> missing = missing_ranks();
        fail(formatted(
            "{} within {} s. Either a rank is stuck or slower than the time limit allows (TESSERA_TIMEOUT_S, InitOptions::timeout), or it makes other calls; all ranks must make the same.",
            missing.empty()
                ? std::string("all ranks have come, but one did not finish")
                : ranks_text(missing) +
                      (missing.size() == 1 ? " has" : " have") + " not come",
            seconds.count()));
      }
      if (waited >= next_notice) {
        next_notice += notice_interval_;
        log_wait(seconds);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  } catch (const c10::Error& error) {
    fail_without_store(error);
  }
}

void GroupStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  wait({key});
  return keys_->get(key);
}

void GroupStore::set(
    const std::string& key,
    const std::vector<uint8_t>& value) {
  try {
    keys_->set(key, value);
  } catch (const c10::Error& error) {
    fail_without_store(error);
  }
}

std::vector<uint8_t> GroupStore::compareSet(
    const std::string& key,
    const std::vector<uint8_t>& expected,
    const std::vector<uint8_t>& desired) {
  return keys_->compareSet(key, expected, desired);
}

int64_t GroupStore::add(const std::string& key, int64_t value) {
  return keys_->add(key, value);
}

bool GroupStore::deleteKey(const std::string& key) {
  return keys_->deleteKey(key);
}

bool GroupStore::check(const std::vector<std::string>& keys) {
  return keys_->check(keys);
}

int64_t GroupStore::getNumKeys() {
  return keys_->getNumKeys();
}

void GroupStore::append(
    const std::string& key,
    const std::vector<uint8_t>& value) {
  keys_->append(key, value);
}

std::vector<std::vector<uint8_t>> GroupStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return keys_->multiGet(keys);
}

void GroupStore::multiSet(
    const std::vector<std::string>& keys,
    const std::vector<std::vector<uint8_t>>& values) {
  keys_->multiSet(keys, values);
}

bool GroupStore::hasExtendedApi() const {
  return keys_->hasExtendedApi();
}

std::vector<int> job_ranks(c10d::Store& store, int size) {
  if (const GroupStore* group = group_store(store)) {
    return group->job_ranks();
  }
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

} // namespace tessera::runtime
