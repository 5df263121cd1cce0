// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/one_bit_method.h"

#include "tessera/offload/stores/tier_bytes.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <utility>

namespace tessera::engine {

namespace {

int64_t numel_of(const MethodShard& part) {
  int64_t numel = 0;
  for (const ParameterSegment& segment : part.segments) {
    numel += segment.numel;
  }
  return numel;
}

/// Bytes of the room for the largest part.
struct BufferSizes {
  int64_t numel = 0; ///< of values, and of the marks of those in use
  int64_t wire_bytes = 0;
};

BufferSizes sizes_for(const std::vector<CompressedAverage>& averages) {
  BufferSizes sizes;
  for (const CompressedAverage& average : averages) {
    sizes.numel = std::max(sizes.numel, average.padded_numel());
    sizes.wire_bytes = std::max(sizes.wire_bytes, average.wire_bytes());
  }
  return sizes;
}

} // namespace

void OneBitMethod::Segment::round() const {
  if (shard.low_precision.defined()) {
    shard.low_precision.narrow(0, segment.shard_offset, segment.numel)
        .copy_(master());
  }
}

void OneBitMethod::add_to_moments(const Segment& segment, double beta2) const {
  const at::Tensor gradient =
      segment.gradient().to(segment.state(0).scalar_type());
  segment.state(0).mul_(beta1()).add_(gradient, 1 - beta1());
  segment.state(1).mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
}

OneBitMethod::OneBitMethod(
    const char* optimizer,
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    std::vector<std::string> state_names,
    MakeStep make_step)
    : ElementwiseMethod(
          context,
          parameters,
          std::move(state_names),
          std::move(make_step)),
      optimizer_(optimizer),
      parameters_(parameters) {
  for (const MethodShard& part : parts_) {
    const sharding::PageSpec& page = context.pages[part.group];
    const offload::UpdateSite& site = *context.sites[part.group];
    TESSERA_CHECK(
        page.mesh.size(kShardAxis) == 1,
        "wrap: group '{}' is divided over {} ranks, but its optimizer ({}) updates whole parameters on every rank; set sharding.shard_ranks to 1, or use another optimizer.",
        page.name,
        page.mesh.size(kShardAxis),
        optimizer_);
    TESSERA_CHECK(
        site.tiers().state == MemoryTier::kDevice &&
            site.tiers().gradients == MemoryTier::kDevice,
        "wrap: the optimizer state or gradients of group '{}' rest off the device, which {} cannot do; set placement.optimizer and placement.gradients to device, or raise memory.device_bytes.",
        page.name,
        optimizer_);
    averages_.emplace_back(
        numel_of(part), page.mesh.size(sharding::kReplicateAxis));
  }
}

void OneBitMethod::add_state_bytes(TierBytes& bytes) const {
  UpdateMethod::add_state_bytes(bytes);
  const auto add = [&](MemoryPurpose purpose, int64_t numel, auto dtype) {
    offload::add_tier_bytes(bytes, MemoryTier::kDevice, purpose, numel, dtype);
  };
  for (const CompressedAverage& average : averages_) {
    add(MemoryPurpose::kOptimizerState, average.error_numel(), at::kFloat);
  }
  const BufferSizes sizes = sizes_for(averages_);
  add(MemoryPurpose::kStaging, sizes.numel, at::kFloat);
  add(MemoryPurpose::kStaging, sizes.numel, at::kFloat);
  add(MemoryPurpose::kStaging, sizes.wire_bytes, at::kByte);
}

void OneBitMethod::allocate(const StateMemory& memory) {
  UpdateMethod::allocate(memory);
  if (parts_.empty()) {
    return;
  }
  const c10::Device device = context_.pages[parts_.front().group].device;
  for (CompressedAverage& average : averages_) {
    average.allocate(memory.ledger, device);
  }
  const BufferSizes sizes = sizes_for(averages_);
  const auto allocate = [&](int64_t numel, at::ScalarType dtype) {
    return memory.ledger.allocate_zeros(
        MemoryPurpose::kStaging, numel, dtype, device);
  };
  values_ = allocate(sizes.numel, at::kFloat);
  used_ = allocate(sizes.numel, at::kFloat);
  wire_ = allocate(sizes.wire_bytes, at::kByte);
}

int64_t OneBitMethod::steps() const {
  int64_t steps = 0;
  for (const OptimizedParameter* parameter : parameters_) {
    steps = std::max(steps, parameter->steps);
  }
  return steps;
}

Communicator& OneBitMethod::replicas(const MethodShard& part) const {
  return context_.ranks.of(context_.pages[part.group]).replicas();
}

void OneBitMethod::begin_backward(const sharding::PageTable& pages) {
  const auto averaging = averages(steps() + 1)
                             ? sharding::GradientAveraging::kOverRanks
                             : sharding::GradientAveraging::kNone;
  for (const MethodShard& part : parts_) {
    pages[part.group].gradients->set_averaging(averaging);
  }
}

void OneBitMethod::step(const StepInput& input) {
  const int64_t step = steps();
  averages(step) ? averaged_step(input, step) : compressed_step(input, step);
}

void OneBitMethod::for_each_segment(
    const StepInput& input,
    const std::function<void(const Segment&)>& body) {
  for_each_part(
      input,
      active_parts(),
      {},
      [&](MethodShard& part, const offload::ShardTensors& shard) {
        for (const ParameterSegment& segment : part.segments) {
          if (segment.parameter->has_gradient) {
            body({*segment.parameter, part, shard, segment});
          }
        }
      });
}

void OneBitMethod::compressed_step(const StepInput& input, int64_t step) {
  for_each_part(
      input,
      active_parts(),
      {},
      [&](MethodShard& part, const offload::ShardTensors& shard) {
        exchange_momentum(part, shard);
        for (const ParameterSegment& segment : part.segments) {
          if (segment.parameter->has_gradient) {
            update({*segment.parameter, part, shard, segment}, input, step);
          }
        }
      });
}

void OneBitMethod::exchange_momentum(
    MethodShard& part,
    const offload::ShardTensors& shard) {
  CompressedAverage& average =
      averages_[static_cast<size_t>(&part - parts_.data())];
  const at::Tensor values = values_.narrow(0, 0, average.padded_numel());
  const at::Tensor used = used_.narrow(0, 0, average.padded_numel());
  values.zero_();
  used.zero_();
  // Packed: what lies between runs is not sent.
  const auto for_segments = [&](const auto& body) {
    int64_t offset = 0;
    for (const ParameterSegment& segment : part.segments) {
      if (segment.parameter->has_gradient) {
        body(
            Segment{*segment.parameter, part, shard, segment},
            values.narrow(0, offset, segment.numel),
            used.narrow(0, offset, segment.numel));
      }
      offset += segment.numel;
    }
  };
  for_segments([&](const Segment& segment,
                   const at::Tensor& to,
                   const at::Tensor& in_use) {
    in_use.copy_(segment.state(1).ne(0));
    at::Tensor momentum = segment.state(0).mul(beta1());
    momentum.add_(segment.gradient().to(momentum.scalar_type()), 1 - beta1());
    to.copy_(momentum.mul_(momentum_factor(segment.parameter)));
    to.mul_(in_use);
  });
  Communicator& ranks = replicas(part);
  if (ranks.size() > 1) {
    average.run(
        values,
        used,
        wire_.narrow(0, 0, average.wire_bytes()),
        ranks,
        "average of the momentum of '" + context_.pages[part.group].name + "'",
        context_.ranks.watch_failures());
  }
  for_segments(
      [&](const Segment& segment, const at::Tensor& from, const at::Tensor&) {
        receive(
            segment,
            from.to(segment.state(0).scalar_type())
                .div_(momentum_factor(segment.parameter)));
      });
}

void OneBitMethod::visit_state(StateVisitor& visitor) {
  UpdateMethod::visit_state(visitor);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (replicas(parts_[i]).size() == 1) {
      continue; // nothing is sent
    }
    const at::Tensor errors = averages_[i].errors();
    visitor.opaque(
        "one_bit_errors",
        [errors] { return errors.to(at::kCPU).view(at::kByte); },
        [errors](const at::Tensor& bytes) {
          errors.copy_(bytes.view(at::kFloat));
        },
        [errors] { errors.zero_(); });
  }
}

} // namespace tessera::engine
