// SPDX-License-Identifier: Apache-2.0
#include "support/vdev/vdev_runtime.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

namespace tessera::tests::vdev {

namespace {

/// The background thread takes over after the host has been quiet for so long.
constexpr std::chrono::milliseconds kQuiet{10};
constexpr std::chrono::microseconds kPause{50};

double now_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) {
    uint64_t& known = into[stream];
    known = std::max(known, number);
  }
}

bool knows(const Clock& clock, int stream, uint64_t number) {
  const auto found = clock.find(stream);
  return found != clock.end() && found->second >= number;
}

std::string stream_text(int key) {
  const std::string id = std::to_string(key % kKeysPerDevice);
  return key < kKeysPerDevice ? "stream " + id
                              : "stream " + id + " of device " +
                                    std::to_string(key / kKeysPerDevice);
}

} // namespace

std::string Policy::name() const {
  switch (order) {
    case Order::kEager:
      return "eager";
    case Order::kLazy:
      return "lazy";
    case Order::kRandom:
      return "random_" + std::to_string(seed);
    case Order::kStarve:
      return "starve_" + std::to_string(starved);
  }
  return "";
}

Runtime& Runtime::instance() {
  // Never destroyed: tensors may be freed at exit.
  static auto* const kRuntime = new Runtime;
  return *kRuntime;
}

void Runtime::set_policy(const Policy& policy) {
  const Lock lock(mutex_);
  policy_ = policy;
  random_.seed(policy.seed);
}

Runtime::Queue& Runtime::queue_of(const c10::Stream& stream) {
  const int key =
      stream.device_index() * kKeysPerDevice + static_cast<int>(stream.id());
  Queue& queue = queues_[key];
  queue.key = key;
  return queue;
}

void Runtime::push(Queue& queue, Item item) {
  queue.items.push_back(std::move(item));
  ++activity_;
  run_after_issue();
}

void Runtime::issue(const c10::Stream& stream, Command command) {
  const Lock lock(mutex_);
  Queue& queue = queue_of(stream);
  merge(queue.clock, host_);
  Clock clock = queue.clock;
  merge(clock, command.also_after);
  const uint64_t number = queue.issued + 1;
  if (const auto race = race_of(queue, clock, command)) {
    note_violation(*race);
    TORCH_CHECK(!command.may_throw, *race);
  }
  queue.issued = number;
  queue.clock[queue.key] = number;
  note_uses(queue, command);
  if (trace_ && command.name != kRelease) {
    note_in_trace(queue, line_of(command));
  }
  ++counters_.commands;
  push(queue, {std::move(command.name), std::move(command.run), {}, {}});
}

std::optional<std::string> Runtime::race_of(
    const Queue& queue,
    const Clock& clock,
    const Command& command) {
  const auto text = [&](const Access& access, const Use& other, bool wrote) {
    return "race: " + command.name + " on " + stream_text(queue.key) +
           (access.is_write ? " writes" : " reads") + " memory that " +
           other.name + " on " + stream_text(other.stream) +
           (wrote ? " writes" : " reads") + ", without an order between them";
  };
  for (const Access& access : command.accesses) {
    auto at = memory_.upper_bound(access.range.begin);
    if (at != memory_.begin()) {
      --at;
    }
    for (; at != memory_.end() && at->first < access.range.end; ++at) {
      const Segment& segment = at->second;
      if (segment.end <= access.range.begin) {
        continue;
      }
      const Use& writer = segment.writer;
      if (writer.stream >= 0 && writer.stream != queue.key &&
          !knows(clock, writer.stream, writer.number)) {
        return text(access, writer, true);
      }
      if (!access.is_write) {
        continue;
      }
      for (const Use& reader : segment.readers) {
        if (reader.stream != queue.key &&
            !knows(clock, reader.stream, reader.number)) {
          return text(access, reader, false);
        }
      }
    }
  }
  return std::nullopt;
}

void Runtime::split(uintptr_t at) {
  auto found = memory_.upper_bound(at);
  if (found == memory_.begin()) {
    return;
  }
  --found;
  if (found->first < at && found->second.end > at) {
    Segment rest = found->second;
    found->second.end = at;
    memory_.emplace(at, std::move(rest));
  }
}

void Runtime::note_uses(const Queue& queue, const Command& command) {
  const Use use{queue.key, queue.issued, command.name};
  for (const auto& [range, is_write] : command.accesses) {
    if (range.begin == range.end) {
      continue;
    }
    split(range.begin);
    split(range.end);
    auto at = memory_.lower_bound(range.begin);
    if (is_write) {
      while (at != memory_.end() && at->first < range.end) {
        at = memory_.erase(at);
      }
      memory_.emplace(range.begin, Segment{range.end, use, {}});
      continue;
    }
    uintptr_t begin = range.begin;
    while (begin < range.end) {
      at = memory_.lower_bound(begin);
      if (at == memory_.end() || at->first > begin) {
        const uintptr_t end =
            at == memory_.end() ? range.end : std::min(range.end, at->first);
        at = memory_.emplace(begin, Segment{end, {}, {}}).first;
      }
      auto& readers = at->second.readers;
      const auto own =
          std::find_if(readers.begin(), readers.end(), [&](const Use& other) {
            return other.stream == use.stream;
          });
      if (own != readers.end()) {
        *own = use;
      } else {
        readers.push_back(use);
      }
      begin = at->second.end;
    }
  }
}

void Runtime::forget(const Range& range) {
  const Lock lock(mutex_);
  split(range.begin);
  split(range.end);
  auto at = memory_.lower_bound(range.begin);
  while (at != memory_.end() && at->first < range.end) {
    at = memory_.erase(at);
  }
}

std::string Runtime::pending_use(const Range& range) {
  const Lock lock(mutex_);
  for (const auto& [begin, segment] : memory_) {
    if (begin >= range.end || segment.end <= range.begin) {
      continue;
    }
    const auto is_open = [&](const Use& use) {
      return use.stream >= 0 && !knows(host_, use.stream, use.number);
    };
    if (is_open(segment.writer)) {
      return segment.writer.name;
    }
    for (const Use& reader : segment.readers) {
      if (is_open(reader)) {
        return reader.name;
      }
    }
  }
  return {};
}

std::shared_ptr<Mark> Runtime::record(const c10::Stream& stream) {
  const Lock lock(mutex_);
  Queue& queue = queue_of(stream);
  merge(queue.clock, host_);
  auto mark = std::make_shared<Mark>();
  mark->stream = queue.key;
  mark->clock = queue.clock;
  note_in_trace(queue, "mark");
  push(queue, {"record", {}, mark, {}});
  return mark;
}

void Runtime::wait_in_stream(
    const c10::Stream& stream,
    const std::shared_ptr<Mark>& mark) {
  const Lock lock(mutex_);
  Queue& queue = queue_of(stream);
  merge(queue.clock, mark->clock);
  note_in_trace(queue, "wait for " + stream_text(mark->stream));
  push(queue, {"wait", {}, {}, mark});
}

Runtime::Step Runtime::step(Queue& queue, bool nudge) {
  if (queue.items.empty()) {
    return Step::kEmpty;
  }
  Item& item = queue.items.front();
  if (item.awaited && !item.awaited->done) {
    return Step::kBlocked;
  }
  if (item.recorded) {
    item.recorded->done = true;
    item.recorded->seconds = now_seconds();
  }
  if (item.run) {
    // Any thread that waits runs commands: all with the same number of threads,
    // on which the bits of sums depend.
    static thread_local const bool kHasThreads = [] {
      at::init_num_threads();
      return true;
    }();
    (void)kHasThreads;
    try {
      // Nothing of the issuing thread: neither autograd nor modes nor
      // observers.
      const c10::impl::ForceDispatchKeyGuard keys(
          c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
          c10::autograd_dispatch_keyset_with_ADInplaceOrView |
              c10::autocast_dispatch_keyset);
      const at::DisableRecordFunctionGuard unobserved;
      queue.busy = !item.run(nudge);
    } catch (const std::exception& error) {
      queue.busy = false;
      failure_ = item.name + " failed on the device: " + error.what();
      note_violation(failure_);
    }
    if (queue.busy) {
      return Step::kBusy;
    }
  }
  // A command may free what it holds: not while it is at the front.
  const Item done = std::move(item);
  queue.items.pop_front();
  return Step::kRan;
}

bool Runtime::run_everything(bool nudge) {
  const bool starves = policy_.order == Policy::Order::kStarve;
  bool has_run = false;
  bool ran = true;
  while (ran) {
    ran = false;
    for (auto& [key, queue] : queues_) {
      if (starves && key % kKeysPerDevice == policy_.starved) {
        continue;
      }
      while (step(queue, nudge && !has_run) == Step::kRan) {
        ran = true;
        has_run = true;
      }
    }
  }
  return has_run;
}

void Runtime::run_after_issue() {
  switch (policy_.order) {
    case Policy::Order::kEager:
    case Policy::Order::kStarve:
      run_everything(false);
      return;
    case Policy::Order::kLazy:
      return;
    case Policy::Order::kRandom:
      for (auto steps = random_() % 4; steps > 0; --steps) {
        auto chosen = queues_.begin();
        std::advance(chosen, random_() % queues_.size());
        step(chosen->second, false);
      }
      return;
  }
}

Runtime::Step Runtime::step_towards(Queue& queue, int depth) {
  const Step taken = step(queue, true);
  if (taken != Step::kBlocked || depth > 64) {
    return taken;
  }
  return step_towards(
      queues_.at(queue.items.front().awaited->stream), depth + 1);
}

bool Runtime::step_for(Queue& queue, bool nudge) {
  switch (policy_.order) {
    case Policy::Order::kLazy:
      break;
    case Policy::Order::kEager:
    case Policy::Order::kStarve:
      if (run_everything(nudge)) {
        return true;
      }
      break;
    case Policy::Order::kRandom: {
      std::vector<Queue*> all;
      for (auto& [key, candidate] : queues_) {
        all.push_back(&candidate);
      }
      std::shuffle(all.begin(), all.end(), random_);
      for (Queue* candidate : all) {
        if (step(*candidate, nudge) == Step::kRan) {
          return true;
        }
      }
      return false;
    }
  }
  if (step_towards(queue, 0) == Step::kRan) {
    return true;
  }
  // A collective that waits for other ranks, which may wait for another one of
  // this rank.
  for (auto& [key, other] : queues_) {
    if (step(other, nudge) == Step::kRan) {
      return true;
    }
  }
  return false;
}

void Runtime::drive(
    Lock& lock,
    Queue& queue,
    const std::function<bool()>& is_over) {
  bool nudge = false;
  while (!is_over()) {
    ++activity_;
    if (step_for(queue, nudge)) {
      nudge = false;
      continue;
    }
    const bool is_busy =
        std::any_of(queues_.begin(), queues_.end(), [](const auto& entry) {
          return entry.second.busy;
        });
    TORCH_CHECK(
        is_busy || is_over(),
        "the host waits for ",
        stream_text(queue.key),
        ", which waits for streams that wait for it");
    if (nudge) {
      lock.unlock();
      std::this_thread::sleep_for(kPause);
      lock.lock();
    }
    nudge = true;
  }
}

void Runtime::throw_failure() {
  TORCH_CHECK(failure_.empty(), std::exchange(failure_, {}));
}

bool Runtime::is_done(const Mark& mark) {
  const Lock lock(mutex_);
  if (!mark.done) {
    // The device runs while the host asks again and again.
    ++activity_;
    step_for(queues_.at(mark.stream), true);
  }
  if (mark.done) {
    merge(host_, mark.clock);
  }
  return mark.done;
}

bool Runtime::is_idle(const c10::Stream& stream) {
  const Lock lock(mutex_);
  Queue& queue = queue_of(stream);
  if (!queue.items.empty()) {
    ++activity_;
    step_for(queue, true);
  }
  if (queue.items.empty()) {
    merge(host_, queue.clock);
  }
  return queue.items.empty();
}

void Runtime::synchronize(const Mark& mark, const std::string& reason) {
  Lock lock(mutex_);
  ++counters_.synchronizations;
  ++reasons_[reason];
  drive(lock, queues_.at(mark.stream), [&] { return mark.done; });
  merge(host_, mark.clock);
  throw_failure();
}

void Runtime::synchronize(
    const c10::Stream& stream,
    const std::string& reason) {
  const auto mark = record(stream);
  synchronize(*mark, reason);
}

void Runtime::synchronize_device(c10::DeviceIndex index) {
  std::vector<c10::StreamId> ids;
  {
    const Lock lock(mutex_);
    for (const auto& [key, queue] : queues_) {
      if (key / kKeysPerDevice == index) {
        ids.push_back(key % kKeysPerDevice);
      }
    }
  }
  for (const c10::StreamId id : ids) {
    synchronize(
        c10::Stream(c10::Stream::UNSAFE, device(index), id),
        "synchronize_device");
  }
}

Counters Runtime::counters() {
  const Lock lock(mutex_);
  return counters_;
}

void Runtime::count_pageable_copy() {
  const Lock lock(mutex_);
  ++counters_.pageable_copies;
}

std::map<std::string, int64_t> Runtime::synchronization_reasons() {
  const Lock lock(mutex_);
  return reasons_;
}

void Runtime::note_in_trace(const Queue& queue, const std::string& line) {
  if (trace_) {
    (*trace_)[queue.key].push_back(line);
  }
}

std::string Runtime::line_of(const Command& command) const {
  std::ostringstream line;
  line << command.name << std::hex;
  for (const Access& access : command.accesses) {
    line << (access.is_write ? " writes " : " reads ");
    const auto [begin, end] = access.range;
    auto found = allocations_.upper_bound(begin);
    if (found != allocations_.begin() && begin < (--found)->second.end) {
      line << "new " << found->second.number << '+' << begin - found->first;
    } else {
      line << begin;
    }
    line << " (" << end - begin << ')';
  }
  return line.str();
}

void Runtime::begin_trace() {
  const Lock lock(mutex_);
  trace_.emplace();
  allocations_.clear();
  allocated_ = 0;
}

void Runtime::note_allocation(const Range& range) {
  const Lock lock(mutex_);
  if (trace_) {
    const size_t number = ++allocated_;
    allocations_[range.begin] = {range.end, number};
  }
}

Trace Runtime::end_trace() {
  const Lock lock(mutex_);
  return std::exchange(trace_, std::nullopt).value_or(Trace{});
}

void Runtime::note_violation(const std::string& text) {
  const Lock lock(mutex_);
  violations_.push_back(text);
}

std::vector<std::string> Runtime::violations() {
  const Lock lock(mutex_);
  return violations_;
}

void Runtime::run_in_background() {
  const Lock lock(mutex_);
  if (std::exchange(runs_in_background_, true)) {
    return;
  }
  std::thread([this] {
    uint64_t seen = 0;
    while (true) {
      std::this_thread::sleep_for(kQuiet);
      const Lock background(mutex_);
      if (activity_ == seen) {
        for (auto& [key, queue] : queues_) {
          while (step(queue, true) == Step::kRan) {
          }
        }
      }
      seen = activity_;
    }
  }).detach();
}

} // namespace tessera::tests::vdev
