// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_method.h"

#include "tessera/engine/optim/state_needs.h"
#include "tessera/engine/optim/tier_bytes.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/counter_random.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera::engine {

namespace {

int64_t round_up(int64_t value) {
  return (value + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
}

/// If every element of the group's storages belongs to some parameter, then
/// what lies between two parameters is padding, and stays zero under any
/// update.
bool gaps_are_padding(const sharding::PageSpec& page) {
  std::map<const c10::StorageImpl*, int64_t> uncovered;
  for (const auto& parameter : page.parameters) {
    const at::Tensor& tensor = parameter.record.tensor;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    const auto whole = static_cast<int64_t>(storage->nbytes()) /
                       static_cast<int64_t>(tensor.itemsize());
    uncovered.emplace(storage, whole).first->second -= tensor.numel();
  }
  return std::all_of(uncovered.begin(), uncovered.end(), [](const auto& item) {
    return item.second == 0;
  });
}

bool same_settings(const ParameterSettings& a, const ParameterSettings& b) {
  return a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay &&
         a.hold_steps == b.hold_steps && a.rule_version == b.rule_version;
}

} // namespace

ShardPart make_shard_part(
    const sharding::PageSpec& page,
    const std::vector<OptimizedParameter*>& parameters) {
  const auto g = static_cast<size_t>(page.number);
  std::vector<OptimizedParameter*> mine(page.parameters.size(), nullptr);
  for (OptimizedParameter* parameter : parameters) {
    if (parameter->group == g) {
      mine[parameter->position] = parameter;
    }
  }
  std::vector<runtime::FlatSpan> spans;
  for (const auto& parameter : page.parameters) {
    spans.push_back(parameter.span);
  }
  const runtime::FlatSpan shard = page.shard();
  std::vector<runtime::FlatRun> runs = runtime::runs_of_shard(spans, shard);
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.shard_offset < b.shard_offset;
  });

  ShardPart part;
  part.group = g;
  const bool joins = gaps_are_padding(page);
  bool previous_is_mine = false;
  for (const runtime::FlatRun& run : runs) {
    OptimizedParameter* parameter = mine[run.parameter];
    if (parameter == nullptr) {
      previous_is_mine = false;
      continue;
    }
    ParameterRun next;
    next.parameter = parameter;
    next.shard_offset = run.shard_offset;
    next.numel = run.numel;
    next.parameter_offset =
        shard.begin + run.shard_offset - spans[run.parameter].begin;
    next.joined = joins && previous_is_mine;
    next.state_offset = round_up(part.state_numel);
    if (next.joined) {
      const ParameterRun& last = part.runs.back();
      next.state_offset =
          last.state_offset + next.shard_offset - last.shard_offset;
    }
    part.state_numel = next.state_offset + next.numel;
    part.runs.push_back(next);
    previous_is_mine = true;
  }
  return part;
}

UpdateMethod::UpdateMethod(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    std::vector<std::string> state_names)
    : context_(context), state_names_(std::move(state_names)) {
  std::vector<size_t> groups;
  for (const OptimizedParameter* parameter : parameters) {
    groups.push_back(parameter->group);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (const size_t g : groups) {
    parts_.push_back(make_shard_part(context.pages[g], parameters));
  }
}

std::vector<sharding::PageRows> UpdateContext::rows_of(
    const std::vector<OptimizedParameter*>& parameters) const {
  std::vector<sharding::PageRows> rows;
  for (const OptimizedParameter* parameter : parameters) {
    rows.push_back({&pages[parameter->group]});
  }
  return rows;
}

c10::Device UpdateContext::device_of_sums() const {
  for (size_t g = 0; g < pages.size(); ++g) {
    if (sites[g] && (sites[g]->tiers().gradients != MemoryTier::kDevice ||
                     streams[g] || sites[g]->device().is_cpu())) {
      return at::kCPU;
    }
  }
  return pages.front().device;
}

void UpdateMethod::add_state_bytes(TierBytes& bytes) const {
  for (const ShardPart& part : parts_) {
    const MemoryTier tier = context_.tiers.pages[part.group].state;
    bytes[static_cast<size_t>(tier)]
         [static_cast<size_t>(MemoryPurpose::kOptimizerState)] +=
        tier_bytes(tier, part.state_numel, state_dtype(part.group)) *
        static_cast<int64_t>(state_names_.size());
  }
}

void UpdateMethod::allocate(MemoryLedger& ledger) {
  for (ShardPart& part : parts_) {
    runtime::ShardStore* store = context_.stores->store(part.group);
    for (const std::string& name : state_names_) {
      if (store == nullptr) {
        part.stored.emplace_back(ledger.allocate_zeros(
            MemoryPurpose::kOptimizerState,
            part.state_numel,
            state_dtype(part.group),
            context_.sites[part.group]->device()));
      } else {
        part.stored.emplace_back(store->reserve(
            name + " of '" + context_.pages[part.group].name + "'",
            MemoryPurpose::kOptimizerState,
            part.state_numel,
            state_dtype(part.group)));
      }
    }
    part.state.resize(part.stored.size());
  }
}

void UpdateMethod::announce_staging() {
  for (const ShardPart& part : parts_) {
    context_.stage.need(stage_bytes(part));
    if (context_.streams[part.group]) {
      context_.streamed.need(
          streamed_bytes(part), static_cast<int64_t>(part.runs.size()));
    }
  }
}

int64_t UpdateMethod::stage_bytes(const ShardPart& part) const {
  const int64_t each =
      context_.tiers.pages[part.group].state == MemoryTier::kNvme
          ? StateStage::Buffer::bytes_for(
                part.state_numel, state_dtype(part.group))
          : 0;
  return context_.sites[part.group]->stage_bytes() +
         each * static_cast<int64_t>(state_names_.size());
}

/// The bytes of a part that are copied to the device and back.
int64_t UpdateMethod::streamed_bytes(const ShardPart& part) const {
  const auto bytes = [](int64_t numel, at::ScalarType dtype) {
    return numel * static_cast<int64_t>(c10::elementSize(dtype));
  };
  const UpdateSite& site = *context_.sites[part.group];
  return bytes(part.state_numel, state_dtype(part.group)) *
             static_cast<int64_t>(state_names_.size()) +
         (site.streams_master()
              ? bytes(
                    context_.pages[part.group].layout.shard_numel(),
                    site.dtype())
              : 0);
}

/// Makes the next user of the state wait until it is copied back: by note_use()
/// if it rests in memory; what is written to a file must be complete.
void UpdateMethod::end_streaming(ShardPart& part) {
  std::vector<runtime::RestingTensor> all = part.stored;
  if (context_.sites[part.group]->streams_master()) {
    all.push_back(context_.pager->groups()[part.group]->master());
  }
  for (const runtime::RestingTensor& tensor : all) {
    if (tensor.in_memory()) {
      context_.streamed.note_use(tensor);
    } else {
      context_.streamed.wait();
    }
  }
}

void UpdateMethod::begin_fetch(ShardPart& part) {
  if (part.fetched) {
    return;
  }
  part.fetched = true;
  if (const int64_t bytes = stage_bytes(part); bytes > 0) {
    part.buffer = context_.stage.take(bytes);
  }
  context_.access[part.group]->begin_fetch(part.buffer.get());
  for (size_t i = 0; i < part.stored.size(); ++i) {
    runtime::RestingTensor& stored = part.stored[i];
    if (stored.in_memory()) {
      part.state[i] = context_.streams[part.group]
                          ? context_.streamed.open(stored)
                          : stored.tensor();
    } else {
      part.state[i] = part.buffer->place(stored.numel(), stored.dtype());
      part.arriving.push_back(stored.read(part.state[i]));
    }
  }
}

void UpdateMethod::begin_fetch(
    ShardPart& part,
    const runtime::RestingTensor& gradient) {
  begin_fetch(part);
  context_.access[part.group]->begin_gradient(gradient, part.buffer.get());
}

PartTensors UpdateMethod::open(
    ShardPart& part,
    const runtime::RestingTensor& gradient) {
  begin_fetch(part, gradient);
  ShardTensors shard = context_.access[part.group]->tensors();
  runtime::wait_all(part.arriving);
  return {std::move(shard), part.state};
}

ShardTensors UpdateMethod::open(ShardPart& part) {
  const TransferWaits::Scope waits(context_.pager->transfer_waits());
  return open(part, context_.pager->bucket(part.group)->shard()).shard;
}

void UpdateMethod::discard(
    ShardPart& part,
    std::vector<runtime::PendingTransfer> leaving) {
  context_.access[part.group]->forget();
  runtime::wait_all(part.arriving);
  give_back(part, std::move(leaving));
}

void UpdateMethod::give_back(
    ShardPart& part,
    std::vector<runtime::PendingTransfer> leaving) {
  for (at::Tensor& state : part.state) {
    state = at::Tensor();
  }
  if (part.buffer != nullptr) {
    context_.stage.give_back(std::move(part.buffer), std::move(leaving));
  }
  part.fetched = false;
}

void UpdateMethod::close(ShardPart& part, const Writes& writes) {
  std::vector<runtime::FlatSpan> written;
  if (writes.weights) {
    for (const UpdateSpan& span :
         active_spans(part, *context_.pager->bucket(part.group))) {
      written.push_back({span.shard_offset, span.numel});
    }
  }
  close(part, written, writes.state);
}

void UpdateMethod::close(
    ShardPart& part,
    const std::vector<runtime::FlatSpan>& written,
    bool writes_state) {
  if (context_.streams[part.group]) {
    end_streaming(part);
  }
  std::vector<runtime::PendingTransfer> leaving =
      context_.access[part.group]->begin_return(written);
  for (size_t i = 0; i < part.stored.size(); ++i) {
    runtime::RestingTensor& stored = part.stored[i];
    if (writes_state && !stored.in_memory()) {
      leaving.push_back(stored.write(part.state[i]));
    }
  }
  give_back(part, std::move(leaving));
}

void UpdateMethod::for_each_part(
    const std::vector<ShardPart*>& parts,
    const Writes& writes,
    const std::function<void(ShardPart&, const ShardTensors&)>& work) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const ShardTensors tensors = open(*parts[i]);
    if (i + 1 < parts.size()) {
      const TransferWaits::Scope waits(context_.pager->transfer_waits());
      ShardPart& next = *parts[i + 1];
      begin_fetch(next, context_.pager->bucket(next.group)->shard());
    }
    work(*parts[i], tensors);
    close(*parts[i], writes);
  }
}

std::vector<ShardPart*> UpdateMethod::active_parts() {
  std::vector<ShardPart*> active;
  for (ShardPart& part : parts_) {
    if (std::any_of(
            part.runs.begin(), part.runs.end(), [this](const auto& run) {
              return has_gradient(*run.parameter);
            })) {
      active.push_back(&part);
    }
  }
  return active;
}

std::optional<PartUpdate> UpdateMethod::prepare(
    size_t g,
    const StepInput& /*input*/) {
  TESSERA_FAIL(
      "group '{}' cannot be updated by itself: its optimizer uses more than one element at a time.",
      context_.pages[g].name);
}

void UpdateMethod::visit_state(StateVisitor& visitor) {
  for (ShardPart& part : parts_) {
    // All state of one name together: it may have to be read from a disk.
    for (size_t i = 0; i < state_names_.size(); ++i) {
      for (const ParameterRun& run : part.runs) {
        visitor.elements(
            run, state_names_[i], part.stored[i], run.state_offset);
      }
    }
  }
}

bool UpdateMethod::has_gradient(const OptimizedParameter& parameter) const {
  return context_.pager->bucket(parameter.group)
      ->has_gradient(parameter.position);
}

at::ScalarType UpdateMethod::state_dtype(size_t group) const {
  return context_.moment_dtype.value_or(context_.sites[group]->dtype());
}

runtime::StochasticRounding UpdateMethod::rounding_of(
    const ShardPart& part,
    const UpdateSpan& span) const {
  const sharding::PageSpec& page = context_.pages[part.group];
  const runtime::FlatSpan shard = page.shard();
  runtime::StochasticRounding rounding;
  rounding.enabled = context_.stochastic_rounding;
  rounding.seed =
      stream_of(page.name) + static_cast<uint64_t>(span.parameter->steps);
  rounding.first_element =
      static_cast<uint64_t>(shard.begin + span.shard_offset);
  return rounding;
}

std::vector<UpdateSpan> active_spans(
    const ShardPart& part,
    const sharding::GradientBucket& bucket,
    bool join) {
  std::vector<UpdateSpan> spans;
  bool previous_is_active = false;
  for (const ParameterRun& run : part.runs) {
    const OptimizedParameter& parameter = *run.parameter;
    const bool active = bucket.has_gradient(parameter.position);
    if (active && join && run.joined && previous_is_active &&
        spans.back().parameter->steps == parameter.steps &&
        same_settings(spans.back().parameter->settings, parameter.settings)) {
      spans.back().numel =
          run.shard_offset + run.numel - spans.back().shard_offset;
    } else if (active) {
      spans.push_back(
          {&parameter, run.shard_offset, run.state_offset, run.numel});
    }
    previous_is_active = active;
  }
  return spans;
}

runtime::UpdateTensors tensors_of(
    const PartTensors& tensors,
    int64_t shard_offset,
    int64_t state_offset,
    int64_t numel) {
  const auto stretch = [numel](const at::Tensor& tensor, int64_t begin) {
    return tensor.defined() ? tensor.narrow(0, begin, numel) : at::Tensor();
  };
  const auto in_shard = [&](const at::Tensor& tensor) {
    return stretch(tensor, shard_offset);
  };
  const ShardTensors& shard = tensors.shard;
  runtime::UpdateTensors views{
      in_shard(shard.master),
      in_shard(shard.gradient),
      {},
      {},
      in_shard(shard.low_precision)};
  const auto states = views.states();
  TESSERA_CHECK(
      tensors.state.size() <= states.size(),
      "optimizer update: {} state tensors, but kernels take at most {}; add to UpdateTensors::states()",
      tensors.state.size(),
      states.size());
  for (size_t i = 0; i < tensors.state.size(); ++i) {
    *states[i] = stretch(tensors.state[i], state_offset);
  }
  return views;
}

} // namespace tessera::engine
