// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/rank_ends.h"

#include "tessera/runtime/comm/host_identity.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"

#include <c10/util/Flags.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

// The lowest level of messages that LibTorch logs.
C10_DECLARE_int(caffe2_log_level);

namespace tessera::runtime {

namespace {

constexpr const char* kSomeEnded = "ended/some";

std::atomic<int64_t> steps_done{0};

std::string end_key(int rank) {
  return "ended/" + std::to_string(rank);
}

/// What /proc tells of a process.
struct ProcessState {
  char state = 'X';
  int64_t start = 0; ///< in clock ticks since the host was started
  int status = 0; ///< as waitpid() gives it, if `state` is 'Z'
};

std::optional<ProcessState> process_state(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(name_end + 1));
  const std::vector<std::string> values{
      std::istream_iterator<std::string>(fields),
      std::istream_iterator<std::string>()};
  // Their numbers in proc(5), less the two before.
  constexpr size_t kStart = 22 - 3;
  constexpr size_t kStatus = 52 - 3;
  if (values.size() <= kStatus) {
    return std::nullopt;
  }
  return ProcessState{
      values[0][0], std::stoll(values[kStart]), std::stoi(values[kStatus])};
}

ProcessEnd end_of_status(int status) {
  return WIFSIGNALED(status) ? ProcessEnd{true, WTERMSIG(status)}
                             : ProcessEnd{false, WEXITSTATUS(status)};
}

struct ProcessFate {
  bool has_ended = false;
  bool is_known = false; ///< how
  ProcessEnd end;
};

/// Whether the process of a note is one of this host and has ended.
ProcessFate fate_of_process(const std::string& note) {
  static const std::string kThisHost = host_identity();
  std::istringstream text(note);
  int64_t pid = 0;
  int64_t start = 0;
  text >> pid >> start;
  text.ignore();
  std::string host;
  std::getline(text, host);
  if (host != kThisHost || start == 0) {
    return {};
  }
  const auto state = process_state(pid);
  if (!state || state->start != start || state->state == 'X') {
    return {.has_ended = true};
  }
  if (state->state == 'Z') {
    return {true, true, end_of_status(state->status)};
  }
  return {};
}

/// Whether values can be set at the exit of a process. Those of Python are gone
/// by then, and a file may be.
bool lasts_to_exit(c10d::Store& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(
      prefixed ? prefixed->getUnderlyingNonPrefixStore().get() : &store);
  return tcp != nullptr;
}

/// One job per process. Never destroyed, because it is used at exit.
RankEnds*& ends_of_job() {
  static RankEnds* ends = nullptr;
  return ends;
}

} // namespace

std::string text_of_end(const RankEnd& end) {
  const std::string rank = "rank " + std::to_string(end.rank);
  const int64_t steps = end.steps.value_or(0);
  const std::string after =
      steps > 0 ? " after " + count_text(steps, "step") : std::string();
  if (!end.process) {
    return rank + "'s process has ended" + after + "; its own error says why";
  }
  if (!end.process->is_success()) {
    return rank + " " + end.process->describe() + after +
           "; its own error says why";
  }
  return formatted(
      "{} ended early{}, with exit code 0; all ranks must {}",
      rank,
      after.empty() ? after : "," + after,
      steps > 0 ? "run the same number of steps" : "make the same calls");
}

void count_step() noexcept {
  ++steps_done;
}

std::string process_note() {
  const auto self = process_state(::getpid());
  return std::to_string(::getpid()) + " " +
         std::to_string(self ? self->start : 0) + " " + host_identity();
}

RankEnds::RankEnds(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size), pid_(::getpid()) {}

std::string RankEnds::process_key(int rank) {
  return "joined/" + std::to_string(rank);
}

void RankEnds::watch_job(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    bool is_shared) {
  auto* ends = new RankEnds(store, rank, size);
  ends_of_job() = ends;
  try {
    ends->read_notes();
    if (lasts_to_exit(*store)) {
      ends->exit_store_ = is_shared ? store->clone() : store;
      ::on_exit(&RankEnds::note_exit, ends);
    }
  } catch (const c10::Error&) {
    // The store is gone; the next one that uses it says so.
  }
}

RankEnds* RankEnds::of(const c10d::Store& store) {
  RankEnds* const ends = ends_of_job();
  return ends != nullptr && ends->store_.get() == &store ? ends : nullptr;
}

void RankEnds::note_exit(int status, void* given) {
  auto* const ends = static_cast<RankEnds*>(given);
  if (::getpid() != ends->pid_) {
    return; // a child that has not executed another program
  }
  constexpr int kCodeMask = 0xff;
  // The rank that hosts the store may be gone, as at the end of every job; c10d
  // would log a stack trace.
  constexpr int kFatalOnly = 3;
  FLAGS_caffe2_log_level = kFatalOnly;
  try {
    ends->exit_store_->set(
        end_key(ends->rank_),
        to_bytes(
            std::to_string(status & kCodeMask) + " " +
            std::to_string(steps_done)));
    ends->exit_store_->set(kSomeEnded, to_bytes("1"));
  } catch (const std::exception&) {
    // The rank that hosts the store has ended already.
  }
}

void RankEnds::read_notes() {
  std::vector<int> unknown;
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) {
    if (notes_.count(rank) == 0 && rank != rank_) {
      unknown.push_back(rank);
      keys.push_back(process_key(rank));
    }
  }
  if (keys.empty()) {
    return;
  }
  // In one message where the store can.
  if (store_->hasExtendedApi() && store_->check(keys)) {
    const auto values = store_->multiGet(keys);
    for (size_t i = 0; i < unknown.size(); ++i) {
      notes_[unknown[i]] = to_text(values[i]);
    }
    return;
  }
  for (size_t i = 0; i < unknown.size(); ++i) {
    if (store_->check({keys[i]})) {
      notes_[unknown[i]] = to_text(store_->get(keys[i]));
    }
  }
}

std::optional<RankEnd> RankEnds::noted_end(int rank) {
  if (!store_->check({end_key(rank)})) {
    return std::nullopt;
  }
  std::istringstream note(to_text(store_->get(end_key(rank))));
  int code = 0;
  int64_t steps = 0;
  note >> code >> steps;
  return RankEnd{rank, ProcessEnd{false, code}, steps};
}

std::optional<RankEnd> RankEnds::end_of(int rank, bool some_noted) {
  if (some_noted) {
    if (const auto end = noted_end(rank)) {
      return end;
    }
  }
  const auto known = notes_.find(rank);
  if (known == notes_.end()) {
    return std::nullopt;
  }
  const ProcessFate fate = fate_of_process(known->second);
  if (!fate.has_ended) {
    return std::nullopt;
  }
  // It may have written the note since.
  try {
    if (const auto noted = noted_end(rank)) {
      return noted;
    }
  } catch (const c10::Error&) {
    // It hosted the store.
  }
  RankEnd end{rank, std::nullopt, std::nullopt};
  if (fate.is_known) {
    end.process = fate.end;
  }
  return end;
}

std::vector<RankEnd> RankEnds::among(const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  bool some_noted = false;
  try {
    read_notes();
    some_noted = store_->check({kSomeEnded});
  } catch (const c10::Error&) {
    // The store is gone, and with it the rank that hosts it.
  }
  std::vector<RankEnd> ended;
  for (const int rank : ranks) {
    if (rank == rank_) {
      continue;
    }
    std::optional<RankEnd> end;
    try {
      end = end_of(rank, some_noted);
    } catch (const c10::Error&) {
      end = end_of(rank, /*some_noted=*/false);
    }
    if (end) {
      ended.push_back(*end);
    }
  }
  return ended;
}

} // namespace tessera::runtime
