// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/speculative_state.h"

#include "tessera/offload/stores/tier_bytes.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/memory/tensor_bytes.h"

#include <cstring>
#include <string>
#include <utility>

namespace tessera::offload {

namespace {

/// The gaps between the stretches in [0, numel).
std::vector<runtime::FlatSpan> rest_of(
    const std::vector<SpanUpdate>& updated,
    int64_t numel,
    int64_t SpanUpdate::*begin) {
  std::vector<runtime::FlatSpan> rest;
  int64_t end = 0;
  for (const SpanUpdate& span : updated) {
    if (span.*begin > end) {
      rest.push_back({end, span.*begin - end});
    }
    end = span.*begin + span.numel;
  }
  if (numel > end) {
    rest.push_back({end, numel - end});
  }
  return rest;
}

void copy_rest(
    const at::Tensor& into,
    const at::Tensor& from,
    const std::vector<SpanUpdate>& updated,
    int64_t SpanUpdate::*begin) {
  if (!from.defined()) {
    return;
  }
  for (const runtime::FlatSpan& span : rest_of(updated, into.numel(), begin)) {
    into.narrow(0, span.begin, span.numel)
        .copy_(from.narrow(0, span.begin, span.numel));
  }
}

/// Runs on the threads of the update pool.
runtime::CpuUpdate copy_of(const at::Tensor& into, const at::Tensor& from) {
  const auto item = static_cast<int64_t>(into.itemsize());
  auto* to = static_cast<std::byte*>(into.mutable_data_ptr());
  const auto* values = static_cast<const std::byte*>(from.const_data_ptr());
  return {into.numel(), [=](int64_t begin, int64_t end) {
            std::memcpy(
                to + begin * item,
                values + begin * item,
                static_cast<size_t>((end - begin) * item));
            return true;
          }};
}

} // namespace

void SpeculativeState::add_bytes(TierBytes& bytes) const {
  const auto add = [&](MemoryTier tier, int64_t numel, at::ScalarType dtype) {
    add_tier_bytes(bytes, tier, MemoryPurpose::kStaging, numel, dtype);
  };
  // On a device that is the CPU it is in host memory.
  const MemoryTier state = state_.site().tiers().state;
  const MemoryTier tier =
      state == MemoryTier::kDevice ? MemoryTier::kHost : state;
  for (size_t i = 0; i < state_.names().size(); ++i) {
    add(tier, state_.numel(), shard().types.moment);
  }
  if (shard().has_separate_master) {
    add(tier, shard().numel, shard().types.master);
  }
  add(MemoryTier::kHost, shard().numel, shard().types.weight);
}

std::string SpeculativeState::name_of(const std::string& label) const {
  return "the second copy of " + label + " of '" + shard().page +
         "' (optimizer.overlap speculate)";
}

void SpeculativeState::allocate(
    HostMemory& memory,
    runtime::ShardStore* store) {
  const auto on_host =
      [&](const std::string& label, int64_t numel, at::ScalarType dtype) {
        return memory
            .allocate(
                name_of(label),
                MemoryPurpose::kStaging,
                runtime::bytes_of(numel, dtype))
            .view(dtype);
      };
  const auto beside_state =
      [&](const std::string& label, int64_t numel, at::ScalarType dtype) {
        return store != nullptr
                   ? runtime::RestingTensor(store->reserve(
                         name_of(label), MemoryPurpose::kStaging, numel, dtype))
                   : runtime::RestingTensor(on_host(label, numel, dtype));
      };
  const UpdateTypes& types = shard().types;
  for (const std::string& name : state_.names()) {
    copies_.push_back(beside_state(name, state_.numel(), types.moment));
  }
  if (shard().has_separate_master) {
    master_ = beside_state("master weights", shard().numel, types.master);
  }
  weights_ = on_host("weights", shard().numel, types.weight);
}

/// Makes an update of `tensors` write here what it would change in place.
/// Tensors from a file or another device are copies already.
void SpeculativeState::redirect(ShardTensors& tensors, ShardTensors& before) {
  const auto replace = [](at::Tensor& tensor, at::Tensor& from, at::Tensor by) {
    from = std::exchange(tensor, std::move(by));
  };
  before.state.resize(tensors.state.size());
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].in_memory()) {
      replace(tensors.state[i], before.state[i], copies_[i].tensor());
    }
  }
  if (master_.in_memory()) {
    replace(tensors.master, before.master, master_.tensor());
  }
  if (tensors.low_precision.defined()) {
    tensors.low_precision = weights_;
  } else {
    replace(tensors.master, before.master, weights_); // they are the master
  }
}

void SpeculativeState::update(
    const StateUpdate& update,
    const std::function<void()>& meanwhile) {
  ShardTensors tensors = state_.open(update.gradient);
  meanwhile();
  runtime::wait_all(leaving_);
  ShardTensors before;
  redirect(tensors, before);
  update.run(tensors, &before);
  // What is not updated is swapped too.
  copy_rest(
      tensors.master, before.master, update.spans, &SpanUpdate::shard_offset);
  std::vector<runtime::PendingTransfer> leaving;
  for (size_t i = 0; i < copies_.size(); ++i) {
    copy_rest(
        tensors.state[i],
        before.state[i],
        update.spans,
        &SpanUpdate::state_offset);
    if (!copies_[i].in_memory()) {
      leaving.push_back(copies_[i].write(tensors.state[i]));
    }
  }
  if (master_.defined() && !master_.in_memory()) {
    leaving.push_back(master_.write(tensors.master));
  }
  state_.discard(std::move(leaving));
}

void SpeculativeState::commit(const StateUpdate& update) {
  if (state_.is_fetched()) {
    state_.discard(); // the previous state
  }
  std::swap(state_.stored(), copies_);
  if (shard().has_separate_master) {
    state_.shards().swap_separate_master(master_);
  }
  copy_weights(update);
}

void SpeculativeState::copy_weights(const StateUpdate& update) {
  const runtime::RestingTensor& resting = state_.shards().weights();
  if (!resting.is_on(c10::kCPU)) {
    leaving_.push_back(
        state_.shards().begin_return_of_weights(weights_, update.written()));
    return;
  }
  const at::Tensor weights = resting.tensor();
  std::vector<runtime::CpuUpdate> copies;
  for (const SpanUpdate& span : update.spans) {
    copies.push_back(copy_of(
        weights.narrow(0, span.shard_offset, span.numel),
        weights_.narrow(0, span.shard_offset, span.numel)));
  }
  runtime::run_cpu_updates(copies);
}

} // namespace tessera::offload
