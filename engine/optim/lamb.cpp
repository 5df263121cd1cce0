// SPDX-License-Identifier: Apache-2.0
// `LambMethod`: the direction of AdamW, scaled to the norm of the parameter.
#include "tessera/runtime/kernels/lamb.h"
#include "tessera/engine/optim/update_method.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace tessera::engine {

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
    const std::vector<ShardPart*> parts = active_parts();
    const at::Tensor all =
        at::zeros({static_cast<int64_t>(parameters_.size()), 2}, at::kDouble);
    auto* sums = all.mutable_data_ptr<double>();
    for_each_part(
        parts,
        {.weights = false},
        [&](ShardPart& part, const ShardTensors& shard) {
          std::vector<runtime::LambRun> runs;
          std::vector<double*> rows;
          for (const UpdateSpan& span : spans_of(part)) {
            runs.push_back(run_of(part, shard, span, input));
            rows.push_back(sums + 2 * row_of(span));
          }
          runtime::lamb_moments_(runs, rows);
        });
    context_.pager.sum_over_shards(all);
    for_each_part(
        parts,
        {.state = false},
        [&](ShardPart& part, const ShardTensors& shard) {
          std::vector<runtime::LambRun> runs;
          for (const UpdateSpan& span : spans_of(part)) {
            const double* row = sums + 2 * row_of(span);
            runs.push_back(run_of(part, shard, span, input));
            runs.back().step.lr *= trust_ratio(row[0], row[1]);
          }
          runtime::lamb_weights_(runs);
        });
  }

 private:
  std::vector<UpdateSpan> spans_of(const ShardPart& part) const {
    return active_spans(
        part, *context_.pager.bucket(part.group), /*join=*/false);
  }

  runtime::LambRun run_of(
      const ShardPart& part,
      const ShardTensors& shard,
      const UpdateSpan& span,
      const StepInput& input) const {
    const OptimizedParameter& parameter = *span.parameter;
    runtime::AdamWStep step;
    step.lr = input.lr_of(parameter);
    step.beta1 = options_.beta1;
    step.beta2 = options_.beta2;
    step.eps = options_.eps;
    step.weight_decay = parameter.settings.weight_decay;
    step.step = parameter.steps;
    step.grad_scale = parameter.grad_scale;
    step.rounding = rounding_of(part, span);
    runtime::LambRun run{
        tensors_of(
            {shard, part.state},
            span.shard_offset,
            span.state_offset,
            span.numel),
        step};
    run.tensors.grad_factor = parameter.grad_factor;
    return run;
  }

  int64_t row_of(const UpdateSpan& span) const {
    return std::find(parameters_.begin(), parameters_.end(), span.parameter) -
           parameters_.begin();
  }

  /// @param weights, direction sums of squares over the whole parameter.
  double trust_ratio(double weights, double direction) const {
    if (!(weights > 0 && direction > 0)) {
      return 1;
    }
    return std::min(std::sqrt(weights / direction), options_.max_trust_ratio);
  }

  LambOptions options_;
  std::vector<OptimizedParameter*> parameters_;
};

} // namespace

std::unique_ptr<UpdateMethod> make_lamb(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const LambOptions& options) {
  return std::make_unique<LambMethod>(context, parameters, options);
}

} // namespace tessera::engine
