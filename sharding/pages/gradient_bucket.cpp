// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/gradient_bucket.h"

#include "tessera/runtime/core/error.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

void check_dense(const at::Tensor& gradient, const std::string& name) {
  TESSERA_CHECK(
      gradient.layout() == at::kStrided,
      "parameter '{}' got a sparse gradient; shards are dense. Use sparse=false in its Embedding, or leave the module out of the engine.",
      name);
}

} // namespace

GradientBucket::GradientBucket(
    PageMemory& group,
    PageFaultHandler& handler,
    Communicator& replicas,
    MemoryLedger& ledger,
    runtime::ShardStore* store,
    bool keeps_memory)
    : group_(group),
      rank_(group.spec().mesh.index(kShardAxis)),
      ranks_(group.spec().gradient_ranks()),
      replicas_(replicas),
      ledger_(ledger),
      types_(group.spec().gradients),
      store_(store),
      keeps_memory_(store != nullptr || keeps_memory),
      packs_(!group.device().is_cpu()) {
  std::vector<runtime::FlatSpan> spans;
  entries_.reserve(group.parameters().size());
  for (const auto& parameter : group.parameters()) {
    Entry entry;
    entry.parameter = parameter.record.tensor;
    entry.info = {&handler, parameter.index, parameter.record.name()};
    entry.span = parameter.span;
    entry.requires_grad = entry.parameter.requires_grad();
    spans.push_back(entry.span);
    entries_.push_back(std::move(entry));
  }
  for (auto& entry : entries_) {
    // The address of the info is final only now.
    entry.token = make_gradient_token(entry.parameter, entry.info);
  }
  local_segments_ =
      runtime::segments_of_shard(spans, group.layout().shard(rank_));
  gaps_ = runtime::gaps_between(spans, group.layout().padded_numel());
  if (keeps_memory_) {
    ensure_shard();
  }
}

void GradientBucket::ensure_shard() {
  if (shard_.defined()) {
    return;
  }
  const int64_t numel = group_.layout().shard_numel();
  allocated_on_ = runtime::current_stream(group_.device());
  shard_ = store_ != nullptr ? runtime::RestingTensor(store_->reserve(
                                   "gradients of '" + group_.name() + "'",
                                   MemoryPurpose::kGradients,
                                   numel,
                                   types_.shard))
                             : runtime::RestingTensor(ledger_.allocate(
                                   MemoryPurpose::kGradients,
                                   numel,
                                   types_.shard,
                                   group_.device()));
}

int64_t GradientBucket::slot_numel() const {
  return group_.spec().gradient_slot_numel(is_stored());
}

GradientBucket::~GradientBucket() {
  retire();
}

void GradientBucket::place_token(Entry& entry) {
  entry.parameter.mutable_grad() = entry.token;
  entry.token_placed = true;
}

void GradientBucket::take(size_t i) {
  Entry& entry = entries_[i];
  refresh(entry);
  at::Tensor& gradient = entry.parameter.mutable_grad();
  check_dense(gradient, entry.info.parameter_name);
  const c10::NoGradGuard no_grad;
  if (packs_) {
    keep(entry, std::move(gradient), /*adds=*/false);
  } else {
    store(entry, gradient);
  }
  entry.arrived = true;
  entry.has = true;
  place_token(entry);
}

void GradientBucket::keep(Entry& entry, at::Tensor gradient, bool adds) {
  if (entry.waiting.defined()) {
    pack_waiting({});
    adds = true;
  }
  entry.waiting = std::move(gradient);
  entry.adds = adds;
  arrived_on_.insert(*runtime::current_stream(group_.device()));
  if (std::all_of(entries_.begin(), entries_.end(), [](const Entry& other) {
        return other.waiting.defined() || !other.requires_grad;
      })) {
    pack_waiting({});
  }
}

void GradientBucket::pack() {
  const c10::NoGradGuard no_grad;
  if (std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
        return entry.waiting.defined();
      })) {
    pack_waiting({});
  }
}

void GradientBucket::add(size_t i, const at::Tensor& gradient, bool keeps) {
  Entry& entry = entries_[i];
  check_dense(gradient, entry.info.parameter_name);
  const c10::NoGradGuard no_grad;
  // If the slot is the shard, it contains earlier gradients.
  const bool accumulate =
      entry.arrived || (collects_on_top() && entry.in_shard);
  if (packs_ && keeps) {
    keep(entry, gradient, accumulate);
  } else if (accumulate) {
    pack();
    write_on_current_stream();
    slot_view(entry).add_(gradient, packing_factor());
  } else {
    store(entry, gradient);
  }
  entry.arrived = true;
  entry.has = true;
  if (!entry.token_placed) {
    place_token(entry);
  }
}

void GradientBucket::zero(size_t i) {
  const c10::NoGradGuard no_grad;
  entries_[i].arrived = false;
  entries_[i].of_other_backward = false;
  entries_[i].waiting = at::Tensor();
  if (!shard_.defined()) {
    return;
  }
  change([&](const at::Tensor& shard) {
    for (const runtime::FlatSegment& segment : local_segments_) {
      if (segment.parameter == i) {
        shard.narrow(0, segment.shard_offset, segment.numel).zero_();
      }
    }
  });
}

void GradientBucket::change(
    const std::function<void(const at::Tensor& shard)>& change) {
  const c10::NoGradGuard no_grad;
  const at::Tensor values = shard_.load();
  change(values);
  shard_.store(values);
}

void GradientBucket::add_copies(Communicator& copies, const WaitCheck& check) {
  ensure_shard();
  apply_factor();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].has) {
      zero(i);
      place_token(entries_[i]);
      entries_[i].in_shard = true;
      entries_[i].has = true;
    }
  }
  change([&](const at::Tensor& shard) {
    const at::Tensor on_device = shard.to(group_.device());
    copies
        .all_reduce_sum(
            on_device, "sum of the gradients of '" + group_.name() + "'")
        .wait(check);
    if (!on_device.is_same(shard)) {
      shard.copy_(on_device);
    }
  });
  has_copies_ = true;
}

bool GradientBucket::any_arrived() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.arrived;
  });
}

bool GradientBucket::any_gradient() const {
  return std::any_of(
      local_segments_.begin(), local_segments_.end(), [this](auto& segment) {
        return has_gradient(segment.parameter);
      });
}

bool GradientBucket::all_arrived() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.arrived || !entry.requires_grad;
  });
}

bool GradientBucket::holds_token(const Entry& entry) {
  // zero_grad(false) leaves a detached alias of the token.
  const at::Tensor& gradient = entry.parameter.grad();
  return gradient.defined() && gradient_token_info(gradient) == &entry.info;
}

void GradientBucket::refresh(Entry& entry) {
  if (entry.token_placed && !holds_token(entry)) {
    entry.token_placed = false;
    entry.arrived = false;
    entry.in_shard = false;
    entry.has = false;
    entry.waiting = at::Tensor();
    entry.of_other_backward = false;
    has_copies_ = false;
    passed_by_user_ = 0;
    lost_applied_ = lost_applied_ || use_ == Use::kApplied;
  } else if (!entry.token_placed && !entry.parameter.grad().defined()) {
    entry.of_other_backward = false; // set by hand, and dropped
  }
}

void GradientBucket::refresh() {
  for (Entry& entry : entries_) {
    refresh(entry);
  }
}

bool GradientBucket::is_pending(size_t i) const {
  const Entry& entry = entries_[i];
  return entry.parameter.grad().defined() && !holds_token(entry);
}

void GradientBucket::clear() {
  known_factor_ = 1;
  deferred_factor_ = 1;
  use_ = Use::kStep;
  has_copies_ = false;
  passed_by_user_ = 0;
  lost_applied_ = false;
  if (frees_memory()) {
    if (allocated_on_) {
      // Its memory goes back there, but this stream has used it last.
      runtime::mark_current(group_.device()).block(*allocated_on_);
    }
    shard_ = {};
  }
  for (Entry& entry : entries_) {
    entry.parameter.mutable_grad() = at::Tensor();
    refresh(entry);
    entry.has = false;
    entry.arrived = false;
    entry.in_shard = false;
    entry.of_other_backward = false;
    entry.waiting = at::Tensor();
  }
}

void GradientBucket::retire() {
  for (Entry& entry : entries_) {
    if (holds_token(entry)) {
      entry.parameter.mutable_grad() = at::Tensor();
    }
    retire_gradient_token(entry.token);
  }
  entries_.clear();
}

} // namespace tessera::sharding
