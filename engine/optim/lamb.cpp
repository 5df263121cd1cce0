// SPDX-License-Identifier: Apache-2.0
// LAMB: AdamW's direction, at the length of the parameter.
#include "tessera/runtime/kernels/lamb.h"
#include "tessera/engine/optim/update_method.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace tessera {

namespace {

class LambMethod : public UpdateMethod {
 public:
  LambMethod(
      const UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const LambOptions& options)
      : UpdateMethod(context, parameters, {"exp_avg", "exp_avg_sq"}),
        options_(options),
        parameters_(parameters) {}

  void step(const StepInput& input) override {
    // The moments, and the squares of what is in this rank's shard; then the
    // norms of whole parameters; then the weights.
    std::vector<Part> parts = begin_parts();
    std::vector<LambRun> runs;
    std::vector<double*> sums;
    const at::Tensor all =
        at::zeros({static_cast<int64_t>(parameters_.size()), 2}, at::kDouble);
    for (const Part& part : parts) {
      for (const UpdateSpan& span : part.spans) {
        runs.push_back(run_of(part, span, input));
        sums.push_back(all.mutable_data_ptr<double>() + 2 * row_of(span));
      }
    }
    lamb_moments_(runs, sums);
    context_.pager.sum_over_shards(all);
    for (size_t i = 0; i < runs.size(); ++i) {
      runs[i].step.lr *= trust_ratio(sums[i][0], sums[i][1]);
    }
    lamb_weights_(runs);
    for (const Part& part : parts) {
      context_.access[part.shard->group]->end();
    }
  }

 private:
  struct Part {
    const ShardPart* shard;
    ShardTensors tensors;
    std::vector<UpdateSpan> spans;
  };

  std::vector<Part> begin_parts() {
    std::vector<Part> parts;
    for (const ShardPart& part : parts_) {
      auto spans = active_spans(
          part, *context_.pager.bucket(part.group), /*join=*/false);
      if (!spans.empty()) {
        parts.push_back(
            {&part, context_.access[part.group]->begin(), std::move(spans)});
      }
    }
    return parts;
  }

  LambRun run_of(
      const Part& part,
      const UpdateSpan& span,
      const StepInput& input) const {
    const OptimizedParameter& parameter = *span.parameter;
    AdamWStep step;
    step.lr = input.lr_of(parameter);
    step.beta1 = options_.beta1;
    step.beta2 = options_.beta2;
    step.eps = options_.eps;
    step.weight_decay = parameter.settings.weight_decay;
    step.step = parameter.steps;
    step.grad_scale = parameter.grad_scale;
    step.rounding = rounding_of(*part.shard, span);
    return {tensors_of(*part.shard, part.tensors, span), step};
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
    const UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const LambOptions& options) {
  return std::make_unique<LambMethod>(context, parameters, options);
}

} // namespace tessera
