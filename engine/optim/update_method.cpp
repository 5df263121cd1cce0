// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_method.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/random/counter_random.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera::engine {

namespace {

/// If every element of the group's storages belongs to some parameter, then
/// what lies between two parameters is padding, and stays zero under any
/// update.
bool gaps_are_padding(const sharding::PageSpec& page) {
  std::map<const c10::StorageImpl*, int64_t> uncovered;
  for (const auto& parameter : page.parameters) {
    const at::Tensor& tensor = parameter.record.tensor;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    const auto full = static_cast<int64_t>(storage->nbytes()) /
                      static_cast<int64_t>(tensor.itemsize());
    uncovered.emplace(storage, full).first->second -= tensor.numel();
  }
  return std::all_of(uncovered.begin(), uncovered.end(), [](const auto& item) {
    return item.second == 0;
  });
}

bool same_settings(const ParameterSettings& a, const ParameterSettings& b) {
  return a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay &&
         a.frozen_steps == b.frozen_steps && a.rule_version == b.rule_version;
}

} // namespace

MethodShard make_shard_part(
    const sharding::PageSpec& page,
    const std::vector<OptimizedParameter*>& parameters) {
  const auto g = static_cast<size_t>(page.number);
  std::vector<OptimizedParameter*> self_values(page.parameters.size(), nullptr);
  for (OptimizedParameter* parameter : parameters) {
    if (parameter->group == g) {
      self_values[parameter->position] = parameter;
    }
  }
  std::vector<runtime::FlatSpan> spans;
  for (const auto& parameter : page.parameters) {
    spans.push_back(parameter.span);
  }
  const runtime::FlatSpan shard = page.shard();
  std::vector<runtime::FlatSegment> segments =
      runtime::segments_of_shard(spans, shard);
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) {
    return a.shard_offset < b.shard_offset;
  });

  MethodShard part;
  part.group = g;
  const bool joins = gaps_are_padding(page);
  bool previous_is_owned = false;
  for (const runtime::FlatSegment& segment : segments) {
    OptimizedParameter* parameter = self_values[segment.parameter];
    if (parameter == nullptr) {
      previous_is_owned = false;
      continue;
    }
    ParameterSegment next;
    next.parameter = parameter;
    next.shard_offset = segment.shard_offset;
    next.numel = segment.numel;
    next.parameter_offset =
        shard.begin + segment.shard_offset - spans[segment.parameter].begin;
    next.joined = joins && previous_is_owned;
    next.state_offset = runtime::round_up(part.state_numel, kStateAlignment);
    if (next.joined) {
      const ParameterSegment& last = part.segments.back();
      next.state_offset =
          last.state_offset + next.shard_offset - last.shard_offset;
    }
    part.state_numel = next.state_offset + next.numel;
    part.segments.push_back(next);
    previous_is_owned = true;
  }
  return part;
}

UpdateMethod::UpdateMethod(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    std::vector<std::string> state_names)
    : context_(context) {
  std::vector<size_t> groups;
  for (const OptimizedParameter* parameter : parameters) {
    groups.push_back(parameter->group);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (const size_t g : groups) {
    MethodShard& part =
        parts_.emplace_back(make_shard_part(context.pages[g], parameters));
    part.state = std::make_unique<offload::StateAccess>(
        *context.sites[g],
        state_names,
        part.state_numel,
        static_cast<int64_t>(part.segments.size()),
        context.staging,
        context.streamed);
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
                     sites[g]->streams() || sites[g]->device().is_cpu())) {
      return at::kCPU;
    }
  }
  return pages.front().device;
}

void UpdateMethod::add_state_bytes(TierBytes& bytes) const {
  for (const MethodShard& part : parts_) {
    part.state->add_bytes(bytes);
  }
}

void UpdateMethod::allocate(const StateMemory& memory) {
  for (MethodShard& part : parts_) {
    part.state->allocate(
        *memory.shards[part.group],
        memory.stores.store(part.group),
        memory.ledger);
  }
}

offload::ShardTensors UpdateMethod::open(
    const StepInput& input,
    MethodShard& part) {
  const sharding::Page& page = input.pager->pages()[part.group];
  page.check_values();
  const TransferWaits::Scope waits(input.pager->transfer_waits());
  return part.state->open(page.gradients->shard());
}

void UpdateMethod::close(MethodShard& part, const Writes& writes) {
  std::vector<runtime::FlatSpan> written;
  if (writes.weights) {
    for (const ActiveSpan& span : active_spans(part)) {
      written.push_back({span.shard_offset, span.numel});
    }
  }
  part.state->close(written, writes.state);
}

void UpdateMethod::for_each_part(
    const StepInput& input,
    const std::vector<MethodShard*>& parts,
    const Writes& writes,
    const std::function<void(MethodShard&, const offload::ShardTensors&)>&
        work) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const offload::ShardTensors tensors = open(input, *parts[i]);
    if (i + 1 < parts.size()) {
      const TransferWaits::Scope waits(input.pager->transfer_waits());
      MethodShard& next = *parts[i + 1];
      next.state->begin_fetch(
          input.pager->pages()[next.group].gradients->shard());
    }
    work(*parts[i], tensors);
    close(*parts[i], writes);
  }
}

std::vector<MethodShard*> UpdateMethod::active_parts() {
  std::vector<MethodShard*> active;
  for (MethodShard& part : parts_) {
    if (std::any_of(
            part.segments.begin(),
            part.segments.end(),
            [](const auto& segment) {
              return segment.parameter->has_gradient;
            })) {
      active.push_back(&part);
    }
  }
  return active;
}

std::optional<offload::StateUpdate> UpdateMethod::prepare(
    const sharding::Page& page,
    const StepInput& /*input*/) {
  TESSERA_FAIL(
      "group '{}' cannot be updated by itself: its optimizer uses more than one element at a time.",
      page.name());
}

void UpdateMethod::visit_state(StateVisitor& visitor) {
  for (MethodShard& part : parts_) {
    // All state of one name together: it may have to be read from a disk.
    const std::vector<std::string>& names = part.state->names();
    for (size_t i = 0; i < names.size(); ++i) {
      for (const ParameterSegment& segment : part.segments) {
        visitor.elements(
            segment, names[i], part.state->stored()[i], segment.state_offset);
      }
    }
  }
}

runtime::StochasticRounding UpdateMethod::rounding_of(
    const MethodShard& part,
    const ActiveSpan& span) const {
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

std::vector<ActiveSpan> active_spans(const MethodShard& part, bool join) {
  std::vector<ActiveSpan> spans;
  bool previous_is_active = false;
  for (const ParameterSegment& segment : part.segments) {
    const OptimizedParameter& parameter = *segment.parameter;
    const bool active = parameter.has_gradient;
    if (active && join && segment.joined && previous_is_active &&
        spans.back().parameter->steps == parameter.steps &&
        same_settings(spans.back().parameter->settings, parameter.settings)) {
      spans.back().numel =
          segment.shard_offset + segment.numel - spans.back().shard_offset;
    } else if (active) {
      spans.push_back(
          {{segment.shard_offset, segment.state_offset, segment.numel},
           &parameter});
    }
    previous_is_active = active;
  }
  return spans;
}

} // namespace tessera::engine
