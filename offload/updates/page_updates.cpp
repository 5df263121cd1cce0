// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/page_updates.h"

#include <utility>

namespace tessera::offload {

PageUpdates::PageUpdates(
    size_t pages,
    c10::Device device,
    StreamedUpdate& streamed,
    bool overlaps)
    : device_(device),
      streamed_(streamed),
      copies_(pages),
      speculated_(pages),
      tickets_(pages, 0),
      updating_(pages, false),
      after_streaming_(pages) {
  if (overlaps) {
    queue_ = std::make_unique<UpdateQueue>(device_);
  }
}

PageUpdates::~PageUpdates() = default;

void PageUpdates::add_speculation(size_t g, StateAccess& state) {
  copies_[g] = std::make_unique<SpeculativeState>(state);
}

void PageUpdates::add_bytes(TierBytes& bytes) const {
  for (const auto& copy : copies_) {
    if (copy) {
      copy->add_bytes(bytes);
    }
  }
}

void PageUpdates::allocate(
    size_t g,
    HostMemory& memory,
    runtime::ShardStore* store) {
  if (copies_[g]) {
    copies_[g]->allocate(memory, store);
  }
}

void PageUpdates::submit_sums(size_t g, std::function<void()> work) {
  submit(g, std::move(work));
  last_sums_ = tickets_[g];
}

void PageUpdates::wait_for_sums() {
  if (overlaps()) {
    queue_->wait(last_sums_);
  }
}

void PageUpdates::submit(size_t g, std::function<void()> work) {
  queue_->follow_current();
  tickets_[g] = queue_->submit(std::move(work));
}

/// Submits work that begins with update->state and update->gradient.
void PageUpdates::push(
    size_t g,
    std::shared_ptr<StateUpdate> update,
    std::function<void()> work) {
  // While it waits, the work before it may fetch its gradient.
  queue_->follow_current();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(update));
  }
  tickets_[g] = queue_->submit([this, work = std::move(work)] {
    {
      const std::lock_guard lock(mutex_);
      waiting_.pop_front();
    }
    work();
  });
}

void PageUpdates::update(size_t g, std::vector<StateUpdate> updates) {
  if (overlaps() && !updates.empty()) {
    updating_[g] = true;
  }
  const auto speculated = std::exchange(speculated_[g], nullptr);
  if (speculated && updates.size() == 1 &&
      updates.front().spans == speculated->spans) {
    ++statistics_.taken;
    submit(g, [this, g, speculated] { copies_[g]->commit(*speculated); });
    return;
  }
  for (StateUpdate& update : updates) {
    if (!overlaps()) {
      run(update);
      continue;
    }
    ++statistics_.beside;
    auto shared = std::make_shared<StateUpdate>(std::move(update));
    push(g, shared, [this, shared] { run(*shared); });
  }
}

void PageUpdates::speculate(size_t g, StateUpdate update) {
  auto shared = std::make_shared<StateUpdate>(std::move(update));
  speculated_[g] = shared;
  ++statistics_.speculated;
  push(g, shared, [this, g, shared] {
    note(*shared);
    copies_[g]->update(*shared, [&] { fetch_next(*shared); });
  });
}

void PageUpdates::run(const StateUpdate& update) {
  note(update);
  const ShardTensors tensors = update.state->open(update.gradient);
  fetch_next(update);
  update.run(tensors, nullptr);
  update.state->close(update.written(), true);
  if (!update.state->site().streams()) {
    return;
  }
  if (overlaps()) {
    after_streaming_[update.page] = streamed_.mark();
  } else {
    streamed_.join();
  }
}

/// Records the order of updates. What was fetched ahead is for this one or not
/// needed.
void PageUpdates::note(const StateUpdate& update) {
  if (last_ == nullptr) {
    first_ = update.state;
  } else {
    successors_[last_] = update.state;
  }
  last_ = update.state;
  if (prefetched_ == update.state) {
    prefetched_ = nullptr;
  } else {
    drop_prefetched();
  }
}

void PageUpdates::fetch_next(const StateUpdate& update) {
  if (!overlaps()) {
    return;
  }
  std::shared_ptr<StateUpdate> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty()) {
      waiting = waiting_.front();
    }
  }
  StateAccess* next = nullptr;
  if (waiting != nullptr) {
    next = waiting->state;
  } else if (const auto known = successors_.find(update.state);
             known != successors_.end()) {
    next = known->second;
  }
  // Two optimizers of one group use the same weights.
  if (next == nullptr || &next->site() == &update.state->site() ||
      !begin_prefetch(*next)) {
    return;
  }
  if (waiting != nullptr) {
    next->begin_fetch(waiting->gradient);
  } else {
    next->begin_fetch(); // its gradient is not final yet
  }
}

bool PageUpdates::begin_prefetch(StateAccess& state) {
  if (state.staging_bytes() == 0) {
    return false;
  }
  if (prefetched_ != &state) {
    drop_prefetched();
    prefetched_ = &state;
  }
  return true;
}

void PageUpdates::drop_prefetched() {
  StateAccess* const state = std::exchange(prefetched_, nullptr);
  if (state != nullptr && state->is_fetched()) {
    state->discard();
  }
}

void PageUpdates::begin_step() {
  if (overlaps() && !std::exchange(begun_, true)) {
    queue_->follow_current();
    queue_->submit([this] {
      if (first_ != nullptr && begin_prefetch(*first_)) {
        first_->begin_fetch();
      }
    });
  }
}

void PageUpdates::end_step() {
  begun_ = false;
  if (overlaps()) {
    queue_->submit([this] { last_ = nullptr; });
  }
}

runtime::StreamMarks PageUpdates::wait(size_t g) {
  if (!overlaps() || tickets_[g] == 0) {
    return {};
  }
  queue_->wait(tickets_[g]);
  updating_[g] = false;
  runtime::StreamMarks marks = queue_->mark();
  marks.add(after_streaming_[g]);
  return marks;
}

void PageUpdates::wait_all() {
  if (!overlaps()) {
    return;
  }
  queue_->wait_all();
  updating_.assign(updating_.size(), false);
  // The thread is idle.
  drop_prefetched();
  queue_->mark().block_current(device_);
  streamed_.join();
}

} // namespace tessera::offload
