// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_shadow.h"

#include "tessera/engine/optim/tier_bytes.h"
#include "tessera/runtime/kernels/cpu_update.h"

#include <cstring>
#include <string>
#include <utility>

namespace tessera::engine {

namespace {

int64_t bytes_of(int64_t numel, at::ScalarType dtype) {
  return numel * static_cast<int64_t>(c10::elementSize(dtype));
}

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

StateShadow::StateShadow(
    UpdateContext& context,
    UpdateMethod& method,
    ShardPart& part)
    : context_(context), method_(method), part_(part) {}

const sharding::PageSpec& StateShadow::page() const {
  return context_.pages[part_.group];
}

int64_t StateShadow::shard_numel() const {
  return page().layout.shard_numel();
}

void StateShadow::add_bytes(TierBytes& bytes) const {
  const auto add = [&](MemoryTier tier, int64_t numel, at::ScalarType dtype) {
    add_tier_bytes(
        bytes, tier, MemoryPurpose::kStaging, bytes_of(numel, dtype));
  };
  // On a device that is the CPU it is in host memory.
  const MemoryTier state = context_.tiers.pages[part_.group].state;
  const MemoryTier tier =
      state == MemoryTier::kDevice ? MemoryTier::kHost : state;
  for (size_t i = 0; i < method_.state_names().size(); ++i) {
    add(tier, part_.state_numel, method_.state_dtype(part_.group));
  }
  if (page().has_own_master) {
    add(tier, shard_numel(), page().master_dtype());
  }
  add(MemoryTier::kHost, shard_numel(), page().dtype);
}

std::string StateShadow::name_of(const std::string& what) const {
  return "the second copy of " + what + " of '" + page().name +
         "' (optimizer.overlap speculate)";
}

at::Tensor StateShadow::take_host(
    const std::string& name,
    int64_t numel,
    at::ScalarType dtype) {
  return context_.stores->host_memory()
      .allocate(name, MemoryPurpose::kStaging, bytes_of(numel, dtype))
      .view(dtype);
}

/// Reserves room on the tier of the group's state.
runtime::RestingTensor StateShadow::take(
    const std::string& what,
    int64_t numel,
    at::ScalarType dtype) {
  runtime::ShardStore* store = context_.stores->store(part_.group);
  return store != nullptr
             ? runtime::RestingTensor(store->reserve(
                   name_of(what), MemoryPurpose::kStaging, numel, dtype))
             : runtime::RestingTensor(take_host(name_of(what), numel, dtype));
}

void StateShadow::allocate() {
  for (const std::string& name : method_.state_names()) {
    state_.push_back(
        take(name, part_.state_numel, method_.state_dtype(part_.group)));
  }
  if (page().has_own_master) {
    master_ = take("master weights", shard_numel(), page().master_dtype());
  }
  weights_ = take_host(name_of("weights"), shard_numel(), page().dtype);
}

/// Makes an update of `tensors` write here what it would change in place.
/// Tensors from a file or another device are copies already.
void StateShadow::redirect(PartTensors& tensors, PartTensors& before) {
  const auto replace = [](at::Tensor& tensor, at::Tensor& from, at::Tensor by) {
    from = std::exchange(tensor, std::move(by));
  };
  before.state.resize(tensors.state.size());
  for (size_t i = 0; i < state_.size(); ++i) {
    if (state_[i].in_memory()) {
      replace(tensors.state[i], before.state[i], state_[i].tensor());
    }
  }
  at::Tensor& master = tensors.shard.master;
  if (master_.in_memory()) {
    replace(master, before.shard.master, master_.tensor());
  }
  if (tensors.shard.low_precision.defined()) {
    tensors.shard.low_precision = weights_;
  } else {
    replace(master, before.shard.master, weights_); // the shard is the master
  }
}

void StateShadow::update(
    const PartUpdate& update,
    const std::function<void()>& meanwhile) {
  PartTensors tensors = method_.open(part_, update.gradient);
  meanwhile();
  runtime::wait_all(leaving_);
  PartTensors before;
  redirect(tensors, before);
  update.run(tensors, &before);
  // What is not updated is swapped too.
  copy_rest(
      tensors.shard.master,
      before.shard.master,
      update.spans,
      &SpanUpdate::shard_offset);
  std::vector<runtime::PendingTransfer> leaving;
  for (size_t i = 0; i < state_.size(); ++i) {
    copy_rest(
        tensors.state[i],
        before.state[i],
        update.spans,
        &SpanUpdate::state_offset);
    if (!state_[i].in_memory()) {
      leaving.push_back(state_[i].write(tensors.state[i]));
    }
  }
  if (master_.defined() && !master_.in_memory()) {
    leaving.push_back(master_.write(tensors.shard.master));
  }
  method_.discard(part_, std::move(leaving));
}

void StateShadow::commit(const PartUpdate& update) {
  if (part_.fetched) {
    method_.discard(part_); // the previous state
  }
  std::swap(part_.stored, state_);
  if (page().has_own_master) {
    context_.pager->groups()[part_.group]->swap_master(master_);
  }
  copy_weights(update.spans);
}

void StateShadow::copy_weights(const std::vector<SpanUpdate>& spans) {
  const runtime::RestingTensor& shard =
      context_.pager->groups()[part_.group]->shard();
  if (!shard.is_on(c10::kCPU)) {
    std::vector<runtime::FlatSpan> written;
    for (const SpanUpdate& span : spans) {
      written.push_back({span.shard_offset, span.numel});
    }
    leaving_.push_back(
        context_.access[part_.group]->begin_return_of_shard(weights_, written));
    return;
  }
  const at::Tensor weights = shard.tensor();
  std::vector<runtime::CpuUpdate> copies;
  for (const SpanUpdate& span : spans) {
    copies.push_back(copy_of(
        weights.narrow(0, span.shard_offset, span.numel),
        weights_.narrow(0, span.shard_offset, span.numel)));
  }
  runtime::run_cpu_updates(copies);
}

} // namespace tessera::engine
