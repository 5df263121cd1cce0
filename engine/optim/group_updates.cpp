// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/group_updates.h"

#include <optional>
#include <utility>

namespace tessera::engine {

GroupUpdates::GroupUpdates(UpdateContext& context, bool overlaps)
    : context_(context),
      device_(context.pages.front().device),
      copies_(context.pages.size()),
      speculated_(copies_.size()),
      tickets_(copies_.size(), 0),
      updating_(copies_.size(), false),
      streamed_(copies_.size()) {
  if (overlaps) {
    queue_ = std::make_unique<offload::UpdateQueue>(device_);
  }
}

GroupUpdates::~GroupUpdates() = default;

void GroupUpdates::add_speculation(size_t g, offload::StateAccess& state) {
  copies_[g] = std::make_unique<offload::SpeculativeState>(state);
}

void GroupUpdates::add_bytes(TierBytes& bytes) const {
  for (const auto& copy : copies_) {
    if (copy) {
      copy->add_bytes(bytes);
    }
  }
}

void GroupUpdates::allocate() {
  for (size_t g = 0; g < copies_.size(); ++g) {
    if (copies_[g]) {
      copies_[g]->allocate(
          context_.stores->host_memory(), context_.stores->store(g));
    }
  }
}

void GroupUpdates::submit_sums(size_t g, std::function<void()> work) {
  submit(g, std::move(work));
  last_sums_ = tickets_[g];
}

void GroupUpdates::wait_for_sums() {
  if (overlaps()) {
    queue_->wait(last_sums_);
  }
}

void GroupUpdates::submit(size_t g, std::function<void()> work) {
  queue_->follow_current();
  tickets_[g] = queue_->submit(std::move(work));
}

/// Submits work that begins with update->state and update->gradient.
void GroupUpdates::push(
    size_t g,
    std::shared_ptr<offload::StateUpdate> update,
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

void GroupUpdates::update(size_t g, std::vector<offload::StateUpdate> updates) {
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
  for (offload::StateUpdate& update : updates) {
    if (!overlaps()) {
      run(update);
      continue;
    }
    ++statistics_.beside;
    auto shared = std::make_shared<offload::StateUpdate>(std::move(update));
    push(g, shared, [this, shared] { run(*shared); });
  }
}

void GroupUpdates::speculate(size_t g, offload::StateUpdate update) {
  auto shared = std::make_shared<offload::StateUpdate>(std::move(update));
  speculated_[g] = shared;
  ++statistics_.speculated;
  push(g, shared, [this, g, shared] {
    note(*shared);
    copies_[g]->update(*shared, [&] { fetch_next(*shared); });
  });
}

offload::ShardTensors GroupUpdates::open(const offload::StateUpdate& update) {
  std::optional<TransferWaits::Scope> waits;
  if (!overlaps()) {
    waits.emplace(context_.pager->transfer_waits());
  }
  return update.state->open(update.gradient);
}

void GroupUpdates::run(const offload::StateUpdate& update) {
  note(update);
  const offload::ShardTensors tensors = open(update);
  fetch_next(update);
  update.run(tensors, nullptr);
  update.state->close(update.written(), true);
  if (!update.state->site().streams()) {
    return;
  }
  if (overlaps()) {
    streamed_[update.page] = context_.streamed.mark();
  } else {
    context_.streamed.join();
  }
}

/// Records the order of updates. What was fetched ahead is for this one or not
/// needed.
void GroupUpdates::note(const offload::StateUpdate& update) {
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

void GroupUpdates::fetch_next(const offload::StateUpdate& update) {
  if (!overlaps()) {
    return;
  }
  std::shared_ptr<offload::StateUpdate> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty()) {
      waiting = waiting_.front();
    }
  }
  offload::StateAccess* next = nullptr;
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

bool GroupUpdates::begin_prefetch(offload::StateAccess& state) {
  if (state.staging_bytes() == 0) {
    return false;
  }
  if (prefetched_ != &state) {
    drop_prefetched();
    prefetched_ = &state;
  }
  return true;
}

void GroupUpdates::drop_prefetched() {
  offload::StateAccess* const state = std::exchange(prefetched_, nullptr);
  if (state != nullptr && state->is_fetched()) {
    state->discard();
  }
}

void GroupUpdates::begin_step() {
  if (overlaps() && !std::exchange(begun_, true)) {
    queue_->follow_current();
    queue_->submit([this] {
      if (first_ != nullptr && begin_prefetch(*first_)) {
        first_->begin_fetch();
      }
    });
  }
}

void GroupUpdates::end_step() {
  begun_ = false;
  if (overlaps()) {
    queue_->submit([this] { last_ = nullptr; });
  }
}

runtime::StreamMarks GroupUpdates::wait(size_t g) {
  if (!overlaps() || tickets_[g] == 0) {
    return {};
  }
  queue_->wait(tickets_[g]);
  updating_[g] = false;
  runtime::StreamMarks marks = queue_->mark();
  marks.add(streamed_[g]);
  return marks;
}

void GroupUpdates::wait_all() {
  if (!overlaps()) {
    return;
  }
  queue_->wait_all();
  updating_.assign(updating_.size(), false);
  // The thread is idle.
  drop_prefetched();
  queue_->mark().block_current(device_);
  context_.streamed.join();
}

} // namespace tessera::engine
