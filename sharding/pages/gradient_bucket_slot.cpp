// SPDX-License-Identifier: Apache-2.0
// `GradientBucket`: packing gradients into the slot, reduction, accumulation.
#include "tessera/sharding/pages/gradient_bucket.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/sharding/pages/replica_parts.h"

#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace tessera::sharding {

void GradientBucket::advance(State from, State to) {
  TESSERA_CHECK(
      state_ == from,
      "the gradients of group '{}' are {}; what is to be done with them takes that they are {}",
      group_.name(),
      name_of(state_),
      name_of(from));
  state_ = to;
}

const char* GradientBucket::name_of(State state) {
  switch (state) {
    case State::kEmpty:
      return "not being collected";
    case State::kCollecting:
      return "being collected";
    case State::kReducing:
      return "being reduced";
    case State::kReduced:
      return "reduced";
    case State::kEnded:
      return "in their slot";
  }
  return "";
}

bool GradientBucket::divides_first() const {
  // Packing divides for nothing; by a power of two, it is exact.
  return averaging_ == GradientAveraging::kOverRanks &&
         (types_.slot == at::kHalf ||
          (packs_ && std::has_single_bit(static_cast<unsigned>(ranks_))));
}

void GradientBucket::multiply(const DeferredScalar& factor) {
  if (factor.is_deferred()) {
    known_factor_ = this->factor();
    deferred_factor_ = factor;
  } else {
    known_factor_ *= factor;
  }
}

void GradientBucket::apply_factor() {
  const double factor = this->factor();
  if (factor != 1 && shard_.defined()) {
    change([&](const at::Tensor& shard) { shard.mul_(factor); });
  }
  // Not of what comes to a shard that there is none of yet.
  known_factor_ = 1;
  deferred_factor_ = 1;
}

void GradientBucket::open(runtime::Slot slot) {
  const c10::NoGradGuard no_grad;
  if (has_copies_) {
    refresh();
    TESSERA_CHECK(
        !has_copies_,
        "group '{}' received a gradient after those of the other pipeline stages were added to it. Call engine.step() or zero_grad() after clipping, grad() or inspect_model(), and before the next backward.",
        group_.name());
  }
  apply_factor();
  advance(State::kEmpty, State::kCollecting);
  slot_ = std::move(slot);
  if (!slot_.defined()) {
    ensure_shard();
  }
  collected_ = slot_.defined()
                   ? slot_.tensor.narrow(0, 0, group_.layout().padded_numel())
                   : shard_.tensor();
  writer_.reset();
  target_ = slot_.defined() ? Target::kSlot : Target::kShard;
  bring_shard_to_slot();
}

void GradientBucket::bring_shard_to_slot() {
  const bool divided = group_.layout().shard_numel() < collected_.numel();
  if (is_stored() && !divided && ranks_ == 1 && accumulates()) {
    target_ = Target::kSlotOnTop;
    write_on_current_stream();
    read_shard(collected_);
  }
}

void GradientBucket::read_shard(const at::Tensor& into) {
  runtime::PendingTransfer transfer = shard_.read(into);
  transfer.release_issued();
}

double GradientBucket::packing_factor() const {
  return packs_ && divides_first() && slot_.defined() ? 1.0 / ranks_ : 1.0;
}

void GradientBucket::write_on_current_stream() {
  const auto stream = runtime::current_stream(group_.device());
  if (!stream || stream == writer_) {
    return;
  }
  if (writer_) {
    runtime::StreamMarks before;
    before.add(*writer_);
    before.block(*stream);
  } else {
    slot_.after.block(*stream);
  }
  writer_ = stream;
}

void GradientBucket::pack_waiting(const std::vector<runtime::FlatSpan>& rest) {
  write_on_current_stream();
  const auto stream = runtime::current_stream(group_.device());
  runtime::StreamMarks gradients;
  for (const c10::Stream& other : arrived_on_.streams()) {
    if (other != stream) {
      gradients.add(other);
    }
  }
  gradients.block_current(group_.device());
  std::vector<runtime::PackSegment> segments;
  std::vector<runtime::PackSegment> added;
  for (const runtime::FlatSpan& span : rest) {
    segments.push_back({collected_.narrow(0, span.begin, span.numel), {}});
  }
  for (Entry& entry : entries_) {
    if (!entry.waiting.defined()) {
      continue;
    }
    if (entry.adds) {
      added.push_back({slot_view(entry), entry.waiting});
      continue;
    }
    if (entry.span.numel != entry.parameter.numel()) {
      // Gaps between the parameter's elements are included in norms.
      collected_.narrow(0, entry.span.begin, entry.span.numel).zero_();
    }
    segments.push_back({slot_view(entry), entry.waiting});
  }
  runtime::pack_segments_(segments, packing_factor());
  runtime::pack_segments_(added, packing_factor(), runtime::PackMode::kAdd);
  // The memory of the gradients is returned to the streams that made them.
  if (!gradients.empty()) {
    arrived_on_.block(runtime::mark_current(group_.device()));
  }
  arrived_on_.clear();
  for (Entry& entry : entries_) {
    entry.waiting = at::Tensor();
  }
}

at::Tensor GradientBucket::slot_view(const Entry& entry) const {
  // as_strided counts from the start of the storage, not of the tensor.
  return collected_.as_strided(
      entry.parameter.sizes(),
      entry.parameter.strides(),
      collected_.storage_offset() + entry.span.begin);
}

void GradientBucket::store(const Entry& entry, const at::Tensor& gradient) {
  write_on_current_stream();
  if (entry.span.numel != entry.parameter.numel()) {
    // Gaps between the parameter's elements are included in norms.
    collected_.narrow(0, entry.span.begin, entry.span.numel).zero_();
  }
  const runtime::PackSegment segment{slot_view(entry), gradient};
  runtime::pack_segments_({&segment, 1}, packing_factor());
}

std::vector<runtime::FlatSpan> GradientBucket::missing_spans() const {
  std::vector<runtime::FlatSpan> missing = gaps_;
  for (const Entry& entry : entries_) {
    if (!entry.arrived && !(collects_on_top() && entry.in_shard)) {
      missing.push_back(entry.span);
    }
  }
  return missing;
}

void GradientBucket::fill_missing() {
  if (packs_) {
    pack_waiting(missing_spans());
    return;
  }
  for (const runtime::FlatSpan& span : missing_spans()) {
    collected_.narrow(0, span.begin, span.numel).zero_();
  }
}

bool GradientBucket::accumulates() const {
  return target_ == Target::kSlot &&
         std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
           return entry.in_shard;
         });
}

runtime::Slot GradientBucket::close_empty() {
  advance(State::kCollecting, State::kEmpty);
  if (writer_) {
    slot_.after.add(*writer_);
  }
  collected_ = at::Tensor();
  return std::exchange(slot_, {});
}

void GradientBucket::begin_reduce(
    Communicator& communicator,
    const runtime::StreamLane& lane,
    bool apply) {
  const c10::NoGradGuard no_grad;
  advance(State::kCollecting, State::kReducing);
  fill_missing();
  // The tokens detect a zero_grad() between now and end_reduce().
  for (Entry& entry : entries_) {
    if (entry.requires_grad) {
      place_token(entry);
    }
  }
  lane_ = &lane;
  if (!slot_.defined() || !apply || accumulates()) {
    ensure_shard(); // before the lane's scope: the memory is not of its stream
  }
  if (apply) {
    use_ =
        slot_.defined() && !accumulates() ? Use::kApplySlot : Use::kApplyShard;
  }
  // fill_missing() was ordered after all other writers. Norms and updates are
  // issued to the lane even where nothing is reduced.
  lane.follow_current();
  if (!slot_.defined()) {
    advance(State::kReducing, State::kReduced);
    return;
  }
  const runtime::StreamLane::Scope on_lane(lane);
  if (divides_first() && !packs_) {
    collected_.div_(ranks_);
  }
  const runtime::TraceLaneScope traced(runtime::TraceLane::kReduce);
  issue_reduce(communicator);
  if (lane.is_real() && !pending_.pending()) {
    complete({});
  }
}

void GradientBucket::issue_reduce(Communicator& communicator) {
  const PageSpec& page = group_.spec();
  const runtime::FlatSpan self_span = group_.layout().shard(rank_);
  const std::string label = "reduction of '" + group_.name() + "'";
  // Results that are added to the shard, or are never moved there, are placed
  // in the slot: at this rank's part of the input, or behind what arrives.
  if (applies_slot() || accumulates() || !shard_.is_on(group_.device()) ||
      types_.shard != types_.slot ||
      (page.reduce_format && replicas_.size() > 1)) {
    reduced_ = slot_.tensor.narrow(
        0,
        page.reduce_format ? page.reduce_wire_numel() : self_span.begin,
        self_span.numel);
  } else {
    reduced_ = shard_.tensor();
  }
  if (!page.reduce_format) {
    pending_ = communicator.reduce_scatter_sum(reduced_, collected_, label);
    return;
  }
  const int64_t parts = communicator.size();
  const int64_t bytes = parts * page.reduce_format->bytes(self_span.numel);
  const at::Tensor sent =
      slot_bytes(static_cast<int64_t>(collected_.nbytes()), bytes);
  runtime::encode_blocks_(sent, collected_, *page.reduce_format, parts);
  pending_ = communicator.all_to_all(slot_bytes(0, bytes), sent, label);
}

at::Tensor GradientBucket::slot_bytes(int64_t begin, int64_t bytes) const {
  return slot_.tensor.view(at::kByte).narrow(0, begin, bytes);
}

void GradientBucket::sum_received() {
  const auto& format = group_.spec().reduce_format;
  if (!format) {
    return;
  }
  const int64_t parts = group_.spec().mesh.size(kShardAxis);
  runtime::sum_blocks_(
      reduced_,
      slot_bytes(0, parts * format->bytes(reduced_.numel())),
      *format,
      parts);
}

void GradientBucket::sum_over_replicas(const WaitCheck& check) {
  if (replicas_.size() == 1) {
    return;
  }
  if (const int64_t part = replica_part_numel(group_.spec()); part > 0) {
    sum_encoded_over_replicas(part, check);
    return;
  }
  replicas_
      .all_reduce_sum(
          reduced_, "sum over the copies of '" + group_.name() + "'")
      .wait(check);
}

void GradientBucket::sum_encoded_over_replicas(
    int64_t part_numel,
    const WaitCheck& check) {
  const runtime::BlockFormat& format = *group_.spec().reduce_format;
  const int64_t ranks = replicas_.size();
  const int64_t bytes = format.bytes(part_numel);
  const std::string label = "sum over the copies of '" + group_.name() + "'";
  const at::Tensor sent = slot_bytes(0, ranks * bytes);
  const at::Tensor received = slot_bytes(ranks * bytes, ranks * bytes);
  const at::Tensor parts = slot_.tensor.narrow(
      0,
      reduced_.storage_offset() - slot_.tensor.storage_offset(),
      ranks * part_numel);
  parts.narrow(0, reduced_.numel(), parts.numel() - reduced_.numel()).zero_();
  runtime::encode_blocks_(sent, parts, format, ranks);
  replicas_.all_to_all(received, sent, label).wait(check);
  const at::Tensor local =
      parts.narrow(0, replicas_.rank() * part_numel, part_numel);
  runtime::sum_blocks_(local, received, format, ranks);
  const at::Tensor local_bytes =
      received.narrow(0, replicas_.rank() * bytes, bytes);
  runtime::encode_blocks_(local_bytes, local, format);
  replicas_.all_gather(received, local_bytes, label).wait(check);
  runtime::decode_blocks_(parts, received, format, ranks);
}

void GradientBucket::complete(const WaitCheck& check) {
  const runtime::TraceLaneScope traced(runtime::TraceLane::kReduce);
  pending_.wait(check);
  sum_received();
  if (averaging_ == GradientAveraging::kOverRanks) {
    sum_over_replicas(check);
    if (!divides_first() && ranks_ > 1) {
      reduced_.div_(ranks_);
    }
  }
  if (!applies_slot()) {
    store_reduced();
  }
  advance(State::kReducing, State::kReduced);
}

/// [shard_numel] of the shard's type: behind the gradients where the type is
/// another, behind the result if that is behind what arrived, else a part of
/// the slot that was another rank's, or memory that was not planned for where
/// there is no other.
at::Tensor GradientBucket::memory_for_shard() const {
  const int64_t numel = reduced_.numel();
  const int64_t wire = group_.spec().reduce_wire_numel();
  if (types_.shard != types_.slot) {
    const int64_t end = collected_.numel() + wire;
    return slot_.tensor.narrow(0, end, slot_.tensor.numel() - end)
        .view(types_.shard);
  }
  if (numel == collected_.numel()) {
    return ledger_.allocate(
        MemoryPurpose::kReduceSlots, numel, types_.shard, group_.device());
  }
  return wire > 0 ? slot_.tensor.narrow(0, wire + numel, numel)
                  : collected_.narrow(0, rank_ == 0 ? numel : 0, numel);
}

/// Moves the result to the shard, on the lane.
void GradientBucket::store_reduced() {
  const bool in_place = shard_.is_on(group_.device());
  const bool converts = types_.shard != types_.slot;
  at::Tensor sum = in_place ? shard_.tensor() : reduced_;
  if (!in_place && (accumulates() || converts)) {
    sum = memory_for_shard();
  }
  if (accumulates()) {
    if (!in_place) {
      read_shard(sum);
    }
    std::vector<runtime::PackSegment> added;
    std::vector<runtime::PackSegment> copied;
    for (const runtime::FlatSegment& segment : local_segments_) {
      (entries_[segment.parameter].in_shard ? added : copied)
          .push_back(
              {sum.narrow(0, segment.shard_offset, segment.numel),
               reduced_.narrow(0, segment.shard_offset, segment.numel)});
    }
    runtime::pack_segments_(added, 1, runtime::PackMode::kAdd);
    runtime::pack_segments_(copied);
  } else if (converts || (in_place && !sum.is_alias_of(reduced_))) {
    sum.copy_(reduced_);
  }
  if (!in_place) {
    storing_ = shard_.write(sum);
  }
}

void GradientBucket::end_reduce(const WaitCheck& check) {
  const c10::NoGradGuard no_grad;
  if (state_ == State::kReducing) {
    const runtime::StreamLane::Scope on_lane(*lane_);
    complete(check);
  }
  collected_ = at::Tensor();
  advance(State::kReduced, State::kEnded);
  for (Entry& entry : entries_) {
    refresh(entry);
    entry.arrived = false;
    entry.in_shard = entry.token_placed;
  }
}

runtime::Slot GradientBucket::release_slot() {
  advance(State::kEnded, State::kEmpty);
  if (is_applying()) {
    use_ = Use::kApplied;
  }
  reduced_ = at::Tensor();
  // The slot is free, and the shard complete, in the order of the lane.
  storing_.release_issued();
  if (slot_.defined()) {
    slot_.after = lane_->mark();
  }
  return std::exchange(slot_, {});
}

} // namespace tessera::sharding
