// SPDX-License-Identifier: Apache-2.0
// `MuonMethod`: orthogonalized momentum, for matrices between hidden layers.
#include "tessera/engine/optim/optimizers/muon.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"
#include "tessera/engine/optim/optimizers/newton_schulz.h"
#include "tessera/runtime/core/name_patterns.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>

namespace tessera {

namespace engine {

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
    std::vector<MethodShard*> parts;
    for (MethodShard& part : parts_) {
      if (any_gradient(part.group)) {
        parts.push_back(&part);
      }
    }
    for_each_part(
        input,
        parts,
        {},
        [&](MethodShard& part, const offload::ShardTensors& shard) {
          update(part, shard, input);
        });
  }

 private:
  bool any_gradient(size_t group) const {
    return std::any_of(
        parameters_.begin(), parameters_.end(), [&](const auto* parameter) {
          return parameter->group == group && parameter->has_gradient;
        });
  }

  void update(
      const MethodShard& part,
      const offload::ShardTensors& shard,
      const StepInput& input) {
    const at::Tensor full = gather(part, shard);
    for (const ParameterSegment& segment : part.segments) {
      if (segment.parameter->has_gradient) {
        apply(segment, shard, full, input.lr_of(*segment.parameter));
      }
    }
  }

  at::ScalarType compute_dtype(const offload::ShardTensors& shard) const {
    return options_.compute_dtype.value_or(
        shard.master.is_cpu() ? shard.master.scalar_type() : at::kBFloat16);
  }

  /// Updates the momentum and all-gathers the directions of the whole page:
  /// [padded_numel]. Elements outside of this method's matrices are undefined.
  at::Tensor gather(
      const MethodShard& part,
      const offload::ShardTensors& shard) {
    const sharding::PageSpec& page = context_.pages[part.group];
    const auto options =
        at::TensorOptions().dtype(compute_dtype(shard)).device(page.device);
    const at::Tensor self_tensor =
        at::empty({page.layout.shard_numel()}, options);
    for (const ParameterSegment& segment : part.segments) {
      if (!segment.parameter->has_gradient) {
        continue;
      }
      const at::Tensor gradient = segment.parameter->scaled(
          shard.gradient.narrow(0, segment.shard_offset, segment.numel)
              .to(shard.master.scalar_type()));
      const at::Tensor momentum =
          shard.state[0].narrow(0, segment.state_offset, segment.numel);
      momentum.lerp_(gradient, 1 - options_.momentum);
      self_tensor.narrow(0, segment.shard_offset, segment.numel)
          .copy_(
              options_.nesterov ? gradient.lerp(momentum, options_.momentum)
                                : momentum);
    }
    const at::Tensor full = at::empty({page.layout.padded_numel()}, options);
    context_.ranks.of(page)
        .shards()
        .all_gather(full, self_tensor, "Muon's momentum of '" + page.name + "'")
        .wait(context_.ranks.watch_failures());
    return full.to(shard.master.device());
  }

  /// Writes the new values of one run.
  void apply(
      const ParameterSegment& segment,
      const offload::ShardTensors& shard,
      const at::Tensor& full,
      double lr) const {
    const sharding::PagedParameter& paged = *segment.parameter->paged;
    const at::Tensor& tensor = paged.record.tensor;
    const at::Tensor direction = orthogonalize(
        full.as_strided(tensor.sizes(), tensor.strides(), paged.span.begin),
        options_.newton_schulz_steps);
    // In the order of memory, like the runs of the shard.
    const at::Tensor flat = at::empty_strided(
        tensor.sizes(), tensor.strides(), shard.master.options());
    flat.copy_(direction);
    const at::Tensor master =
        shard.master.narrow(0, segment.shard_offset, segment.numel);
    master.mul_(1 - lr * segment.parameter->settings.weight_decay);
    master.sub_(
        flat.as_strided({segment.numel}, {1}, segment.parameter_offset),
        lr * scale(tensor.size(0), tensor.size(1)));
    if (shard.low_precision.defined()) {
      shard.low_precision.narrow(0, segment.shard_offset, segment.numel)
          .copy_(master);
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

std::vector<runtime::NamePattern> names_of_rest(const MuonOptions& options) {
  std::vector<runtime::NamePattern> patterns;
  for (const std::string& pattern : options.adamw_name_patterns) {
    patterns.emplace_back("Muon: adamw_name_patterns", pattern);
  }
  return patterns;
}

bool is_hidden_matrix(
    const OptimizedParameter& parameter,
    const std::vector<runtime::NamePattern>& adamw_name_patterns) {
  const sharding::ParameterRecord& record = parameter.paged->record;
  if (record.tensor.dim() != 2 || record.tensor.numel() == 0) {
    return false;
  }
  for (const runtime::NamePattern& pattern : adamw_name_patterns) {
    for (const std::string& name : parameter.settings.names) {
      if (pattern.is_found_in(name)) {
        return false;
      }
    }
  }
  return true;
}

class Muon : public OptimizerWith<MuonOptions> {
 public:
  const char* name() const override {
    return "Muon";
  }
  const char* key() const override {
    return "muon";
  }
  double default_weight_decay() const override {
    return 0.01;
  }

 private:
  void fields(runtime::OptionFields& fields, MuonOptions& options)
      const override {
    fields.field("momentum", options.momentum, {.min = 0}, "momentum");
    fields.field(
        "adamw_name_patterns",
        options.adamw_name_patterns,
        "regular expressions, searched for in names, of the model and of its checkpoint: matrices that AdamW trains instead");
    visit_adam_fields(fields, options.rest);
    fields.field("nesterov", options.nesterov, "Nesterov's momentum");
    fields.field(
        "newton_schulz_steps",
        options.newton_schulz_steps,
        {.min = 1, .max = 100},
        "iterations of the orthogonalization");
    fields.field(
        "match_adamw",
        options.match_adamw,
        "give updates the root mean square of AdamW's, so that both can use one learning rate");
    fields.choice(
        "compute_dtype",
        options.compute_dtype,
        {{"float32", at::kFloat},
         {"bfloat16", at::kBFloat16},
         {"float16", at::kHalf},
         {"float64", at::kDouble}},
        "dtype of the iterations, by default `bfloat16` on CUDA and that of the master weights on the CPU");
  }
  int moments(const MuonOptions& /*options*/) const override {
    return 2;
  }
  void check_options(const MuonOptions& options) const override {
    static_cast<void>(names_of_rest(options)); // throws
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const MuonOptions& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    const auto adamw_name_patterns = names_of_rest(options);
    std::vector<OptimizedParameter*> hidden;
    std::vector<OptimizedParameter*> rest;
    for (OptimizedParameter* parameter : parameters) {
      (is_hidden_matrix(*parameter, adamw_name_patterns) ? hidden : rest)
          .push_back(parameter);
    }
    if (!hidden.empty()) {
      methods.push_back(std::make_unique<MuonMethod>(context, hidden, options));
    }
    if (!rest.empty()) {
      optimizer_of(std::type_identity<AdamWOptions>())
          .add_methods(context, rest, options.rest, methods);
    }
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<MuonOptions> /*options*/) {
  static const engine::Muon muon;
  return muon;
}

} // namespace tessera
