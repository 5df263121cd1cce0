// SPDX-License-Identifier: Apache-2.0
// `MuonMethod`: orthogonalized momentum, for matrices between hidden layers.
#include "tessera/engine/optim/newton_schulz.h"
#include "tessera/engine/optim/update_method.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>

namespace tessera::engine {

namespace {

class MuonMethod : public UpdateMethod {
 public:
  MuonMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const MuonOptions& options)
      : UpdateMethod(context, parameters, {"momentum_buffer"}),
        options_(options),
        parameters_(parameters) {}

  void step(const StepInput& input) override {
    // Every rank has a part of every group, even if it contains no runs.
    std::vector<ShardPart*> parts;
    for (ShardPart& part : parts_) {
      if (any_gradient(part.group)) {
        parts.push_back(&part);
      }
    }
    for_each_part(parts, {}, [&](ShardPart& part, const ShardTensors& shard) {
      update(part, shard, input);
    });
  }

 private:
  bool any_gradient(size_t group) const {
    return std::any_of(
        parameters_.begin(), parameters_.end(), [&](const auto* parameter) {
          return parameter->group == group && has_gradient(*parameter);
        });
  }

  void update(
      const ShardPart& part,
      const ShardTensors& shard,
      const StepInput& input) {
    const at::Tensor whole = gather(part, shard);
    for (const ParameterRun& run : part.runs) {
      if (has_gradient(*run.parameter)) {
        apply(run, shard, whole, input.lr_of(*run.parameter));
      }
    }
  }

  at::ScalarType compute_dtype(const ShardTensors& shard) const {
    return options_.compute_dtype.value_or(
        shard.master.is_cpu() ? shard.master.scalar_type() : at::kBFloat16);
  }

  /// Updates the momentum and all-gathers the directions of the whole group:
  /// [padded_numel]. Elements outside of this method's matrices are undefined.
  at::Tensor gather(const ShardPart& part, const ShardTensors& shard) {
    const sharding::ParamGroup& group = *context_.pager->groups()[part.group];
    const auto options =
        at::TensorOptions().dtype(compute_dtype(shard)).device(group.device());
    const at::Tensor mine = at::empty({group.layout().shard_numel()}, options);
    for (const ParameterRun& run : part.runs) {
      if (!has_gradient(*run.parameter)) {
        continue;
      }
      const at::Tensor gradient = run.parameter->scaled(
          shard.gradient.narrow(0, run.shard_offset, run.numel)
              .to(shard.master.scalar_type()));
      const at::Tensor momentum =
          part.state[0].narrow(0, run.state_offset, run.numel);
      momentum.lerp_(gradient, 1 - options_.momentum);
      mine.narrow(0, run.shard_offset, run.numel)
          .copy_(
              options_.nesterov ? gradient.lerp(momentum, options_.momentum)
                                : momentum);
    }
    const at::Tensor whole =
        at::empty({group.layout().padded_numel()}, options);
    context_.pager->all_gather_shards(
        part.group, whole, mine, "Muon's momentum of '" + group.name() + "'");
    return whole.to(shard.master.device());
  }

  /// Writes the new values of one run.
  void apply(
      const ParameterRun& run,
      const ShardTensors& shard,
      const at::Tensor& whole,
      double lr) const {
    const sharding::PagedParameter& paged = *run.parameter->paged;
    const at::Tensor& tensor = paged.record.tensor;
    const at::Tensor direction = orthogonalize(
        whole.as_strided(tensor.sizes(), tensor.strides(), paged.span.begin),
        options_.newton_schulz_steps);
    // In the order of memory, like the runs of the shard.
    const at::Tensor flat = at::empty_strided(
        tensor.sizes(), tensor.strides(), shard.master.options());
    flat.copy_(direction);
    const at::Tensor master =
        shard.master.narrow(0, run.shard_offset, run.numel);
    master.mul_(1 - lr * run.parameter->settings.weight_decay);
    master.sub_(
        flat.as_strided({run.numel}, {1}, run.parameter_offset),
        lr * scale(tensor.size(0), tensor.size(1)));
    if (shard.low_precision.defined()) {
      shard.low_precision.narrow(0, run.shard_offset, run.numel).copy_(master);
    }
  }

  double scale(int64_t rows, int64_t columns) const {
    const auto ratio = static_cast<double>(rows) / static_cast<double>(columns);
    return options_.match_adamw
               ? 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)))
               : std::sqrt(std::max(1.0, ratio));
  }

  MuonOptions options_;
  std::vector<OptimizedParameter*> parameters_;
};

} // namespace

std::unique_ptr<UpdateMethod> make_muon(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const MuonOptions& options) {
  return std::make_unique<MuonMethod>(context, parameters, options);
}

} // namespace tessera::engine
