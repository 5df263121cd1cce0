// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/group_updates.h"

#include <optional>
#include <utility>

namespace tessera::engine {

namespace {

std::vector<runtime::FlatSpan> written_by(const PartUpdate& update) {
  std::vector<runtime::FlatSpan> written;
  for (const SpanUpdate& span : update.spans) {
    written.push_back({span.shard_offset, span.numel});
  }
  return written;
}

} // namespace

GroupUpdates::GroupUpdates(UpdateContext& context, bool overlaps)
    : context_(context),
      device_(context.pages.front().device),
      shadows_(context.pages.size()),
      speculated_(shadows_.size()),
      tickets_(shadows_.size(), 0),
      streamed_(shadows_.size()) {
  if (overlaps) {
    queue_ = std::make_unique<UpdateQueue>(device_);
  }
}

GroupUpdates::~GroupUpdates() = default;

void GroupUpdates::add_shadow(UpdateMethod& method, ShardPart& part) {
  shadows_[part.group] = std::make_unique<StateShadow>(context_, method, part);
}

void GroupUpdates::add_bytes(TierBytes& bytes) const {
  for (const auto& shadow : shadows_) {
    if (shadow) {
      shadow->add_bytes(bytes);
    }
  }
}

void GroupUpdates::allocate() {
  for (const auto& shadow : shadows_) {
    if (shadow) {
      shadow->allocate();
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
  tickets_[g] = queue_->submit(std::move(work));
}

/// Submits work that begins with update->part.
void GroupUpdates::push(
    size_t g,
    std::shared_ptr<PartUpdate> update,
    std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(update));
  }
  submit(g, [this, work = std::move(work)] {
    {
      const std::lock_guard lock(mutex_);
      waiting_.pop_front();
    }
    work();
  });
}

void GroupUpdates::update(size_t g, std::vector<PartUpdate> updates) {
  const auto speculated = std::exchange(speculated_[g], nullptr);
  if (speculated && updates.size() == 1 &&
      updates.front().spans == speculated->spans) {
    ++statistics_.taken;
    submit(g, [this, g, speculated] { shadows_[g]->commit(*speculated); });
    return;
  }
  for (PartUpdate& update : updates) {
    if (!overlaps()) {
      run(update);
      continue;
    }
    ++statistics_.beside;
    auto shared = std::make_shared<PartUpdate>(std::move(update));
    push(g, shared, [this, shared] { run(*shared); });
  }
}

void GroupUpdates::speculate(size_t g, PartUpdate update) {
  auto shared = std::make_shared<PartUpdate>(std::move(update));
  speculated_[g] = shared;
  ++statistics_.speculated;
  push(g, shared, [this, g, shared] {
    note(*shared);
    shadows_[g]->update(*shared, [&] { fetch_next(*shared); });
  });
}

PartTensors GroupUpdates::open(const PartUpdate& update) {
  std::optional<TransferWaits::Scope> waits;
  if (!overlaps()) {
    waits.emplace(context_.pager->transfer_waits());
  }
  return update.method->open(*update.part, update.gradient);
}

void GroupUpdates::run(const PartUpdate& update) {
  note(update);
  const PartTensors tensors = open(update);
  fetch_next(update);
  update.run(tensors, nullptr);
  update.method->close(*update.part, written_by(update), true);
  const size_t g = update.part->group;
  if (!context_.streams[g]) {
    return;
  }
  if (overlaps()) {
    streamed_[g] = context_.streamed.mark();
  } else {
    context_.streamed.join();
  }
}

/// Records the order of updates. What was fetched ahead is for this one or not
/// needed.
void GroupUpdates::note(const PartUpdate& update) {
  const Place place{update.method, update.part};
  if (last_.part == nullptr) {
    first_ = place;
  } else {
    successors_[last_.part] = place;
  }
  last_ = place;
  if (prefetched_.part == update.part) {
    prefetched_ = {};
  } else {
    drop_prefetched();
  }
}

void GroupUpdates::fetch_next(const PartUpdate& update) {
  if (!overlaps()) {
    return;
  }
  Place next;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty()) {
      next = {waiting_.front()->method, waiting_.front()->part};
    }
  }
  if (next.part == nullptr) {
    const auto known = successors_.find(update.part);
    next = known == successors_.end() ? Place{} : known->second;
  }
  // Two optimizers of one group use the same weights.
  if (next.part != nullptr && next.part->group != update.part->group) {
    fetch_ahead(*next.method, *next.part);
  }
}

void GroupUpdates::fetch_ahead(UpdateMethod& method, ShardPart& part) {
  if (prefetched_.part != &part && method.stage_bytes(part) > 0) {
    drop_prefetched();
    prefetched_ = {&method, &part};
    method.begin_fetch(part);
  }
}

void GroupUpdates::drop_prefetched() {
  const Place place = std::exchange(prefetched_, {});
  if (place.part != nullptr && place.part->fetched) {
    place.method->discard(*place.part);
  }
}

void GroupUpdates::begin_step() {
  if (overlaps() && !std::exchange(begun_, true)) {
    queue_->submit([this] {
      if (first_.part != nullptr) {
        fetch_ahead(*first_.method, *first_.part);
      }
    });
  }
}

void GroupUpdates::end_step() {
  begun_ = false;
  if (overlaps()) {
    queue_->submit([this] { last_ = {}; });
  }
}

runtime::StreamMarks GroupUpdates::wait(size_t g) {
  if (!overlaps() || tickets_[g] == 0) {
    return {};
  }
  queue_->wait(tickets_[g]);
  runtime::StreamMarks marks = queue_->mark();
  marks.add(streamed_[g]);
  return marks;
}

void GroupUpdates::wait_all() {
  if (!overlaps()) {
    return;
  }
  queue_->wait_all();
  // The thread is idle.
  drop_prefetched();
  queue_->mark().block_current(device_);
  context_.streamed.join();
}

} // namespace tessera::engine
