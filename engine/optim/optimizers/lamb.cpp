// SPDX-License-Identifier: Apache-2.0
// `LambMethod`: the direction of AdamW, scaled to the norm of the parameter.
#include "tessera/engine/optim/optimizers/lamb.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"
#include "tessera/runtime/kernels/lamb.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera {

namespace engine {

namespace {

class LambMethod : public UpdateMethod {
 public:
  LambMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const LambOptions& options)
      : UpdateMethod(context, parameters, {"exp_avg", "exp_avg_sq"}),
        options_(options),
        parameters_(parameters) {}

  void step(const StepInput& input) override {
    // First the moments and the sums of squares of this rank's shard, then the
    // norms of whole parameters, then the weights.
    const std::vector<MethodShard*> parts = active_parts();
    const auto options = at::TensorOptions(context_.device_of_sums());
    const at::Tensor none = at::zeros({1, 2}, options.dtype(at::kDouble));
    std::vector<at::Tensor> rows(parameters_.size(), none);
    for_each_part(
        input,
        parts,
        {.weights = false},
        [&](MethodShard& part, const offload::ShardTensors& shard) {
          std::vector<runtime::LambSegment> segments;
          const std::vector<ActiveSpan> spans = spans_of(part);
          for (const ActiveSpan& span : spans) {
            segments.push_back(segment_of(part, shard, span, input));
          }
          at::Tensor sums = at::empty(
              {static_cast<int64_t>(segments.size()), 2},
              none.options().device(shard.master.device()));
          runtime::lamb_moments_(segments, sums);
          sums = sums.to(none.device());
          for (size_t i = 0; i < spans.size(); ++i) {
            rows[row_of(spans[i])] = sums.narrow(0, static_cast<int64_t>(i), 1);
          }
        });
    const at::Tensor sums = at::cat(rows);
    context_.ranks.sum_over_shards(sums, context_.rows_of(parameters_));
    const at::Tensor ratios = trust_ratios(sums);
    for_each_part(
        input,
        parts,
        {.state = false},
        [&](MethodShard& part, const offload::ShardTensors& shard) {
          const at::Tensor local = ratios.to(shard.master.device());
          std::vector<runtime::LambSegment> segments;
          for (const ActiveSpan& span : spans_of(part)) {
            segments.push_back(segment_of(part, shard, span, input));
            segments.back().lr_factor =
                local[static_cast<int64_t>(row_of(span))];
          }
          runtime::lamb_weights_(segments);
        });
  }

 private:
  static std::vector<ActiveSpan> spans_of(const MethodShard& part) {
    return active_spans(part, /*join=*/false);
  }

  runtime::LambSegment segment_of(
      const MethodShard& part,
      const offload::ShardTensors& shard,
      const ActiveSpan& span,
      const StepInput& input) const {
    const OptimizedParameter& parameter = *span.parameter;
    runtime::AdamWStep step =
        parameter_step(adamw_step(options_), parameter, input);
    step.rounding = rounding_of(part, span);
    runtime::LambSegment segment{shard.views(span), step};
    segment.tensors.grad_factor = parameter.grad_factor;
    return segment;
  }

  size_t row_of(const ActiveSpan& span) const {
    return static_cast<size_t>(
        std::find(parameters_.begin(), parameters_.end(), span.parameter) -
        parameters_.begin());
  }

  /// @param sums [parameters, 2], sums of squares over the whole parameter: of
  ///   its weights and of its direction.
  /// @return [parameters].
  at::Tensor trust_ratios(const at::Tensor& sums) const {
    const at::Tensor weights = sums.select(1, 0);
    const at::Tensor direction = sums.select(1, 1);
    return (weights / direction)
        .sqrt_()
        .clamp_max_(options_.max_trust_ratio)
        .masked_fill_(
            (weights > 0).logical_and_(direction > 0).logical_not_(), 1);
  }

  LambOptions options_;
  std::vector<OptimizedParameter*> parameters_;
};

class Lamb : public OptimizerWith<LambOptions> {
 public:
  const char* name() const override {
    return "LAMB";
  }
  const char* key() const override {
    return "lamb";
  }
  double default_weight_decay() const override {
    return 0.01;
  }
  bool takes_moment_dtype() const override {
    return true;
  }

 private:
  void fields(runtime::OptionFields& fields, LambOptions& options)
      const override {
    visit_adam_fields(fields, options);
    fields.field(
        "max_trust_ratio",
        options.max_trust_ratio,
        {.min = 0, .open_min = true},
        "maximum ratio of the norms of parameter and update");
  }
  int moments(const LambOptions& /*options*/) const override {
    return 2;
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const LambOptions& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    methods.push_back(
        std::make_unique<LambMethod>(context, parameters, options));
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<LambOptions> /*options*/) {
  static const engine::Lamb lamb;
  return lamb;
}

} // namespace tessera
