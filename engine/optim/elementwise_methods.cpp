// SPDX-License-Identifier: Apache-2.0
// Methods that update every element independently, by one fused kernel each.
#include "tessera/engine/optim/update_method.h"
#include "tessera/runtime/kernels/update_runs.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace {

/// @tparam Run argument of the kernel; `make_step` makes its step.
template <typename Run>
class ElementwiseMethod : public UpdateMethod {
 public:
  using Step = decltype(Run::step);
  using MakeStep =
      std::function<Step(const OptimizedParameter&, const StepInput&)>;
  using Kernel = bool (*)(
      std::span<const Run>,
      std::span<const runtime::UpdateTensors> before);

  ElementwiseMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      std::vector<std::string> state_names,
      Kernel kernel,
      MakeStep make_step)
      : UpdateMethod(context, parameters, std::move(state_names)),
        kernel_(kernel),
        make_step_(std::move(make_step)) {}

  void step(const StepInput& input) override {
    for_each_part(
        active_parts(), {}, [&](ShardPart& part, const ShardTensors& shard) {
          prepare(part, input).run({shard, part.state}, nullptr);
        });
  }

  bool is_elementwise() const override {
    return true;
  }

  std::optional<PartUpdate> prepare(size_t g, const StepInput& input) override {
    const auto part =
        std::find_if(parts_.begin(), parts_.end(), [g](const auto& candidate) {
          return candidate.group == g;
        });
    if (part == parts_.end()) {
      return std::nullopt;
    }
    PartUpdate update = prepare(*part, input);
    return update.spans.empty() ? std::nullopt : std::optional(update);
  }

 private:
  PartUpdate prepare(ShardPart& part, const StepInput& input) {
    const sharding::GradientBucket& bucket =
        *context_.pager->bucket(part.group);
    PartUpdate update;
    update.method = this;
    update.part = &part;
    update.gradient = bucket.shard();
    std::vector<Step> steps;
    at::Tensor grad_factor; // of the group
    for (const UpdateSpan& span : active_spans(part, bucket)) {
      const OptimizedParameter& parameter = *span.parameter;
      grad_factor = parameter.grad_factor;
      update.spans.push_back(
          {span.shard_offset,
           span.state_offset,
           span.numel,
           parameter.steps,
           input.lr_of(parameter),
           parameter.grad_scale});
      steps.push_back(make_step_(parameter, input));
      steps.back().rounding = rounding_of(part, span);
    }
    StreamedUpdate* const streamed =
        context_.streams[part.group] ? &context_.streamed : nullptr;
    const bool master_on_host = context_.sites[part.group]->streams_master();
    update.run = [=, kernel = kernel_, spans = update.spans](
                     const PartTensors& tensors, const PartTensors* before) {
      if (streamed != nullptr) {
        stream(*streamed, master_on_host, kernel, spans, steps, tensors);
      } else {
        run(kernel, spans, steps, grad_factor, tensors, before);
      }
    };
    return update;
  }

  static void run(
      Kernel kernel,
      const std::vector<SpanUpdate>& spans,
      const std::vector<Step>& steps,
      const at::Tensor& grad_factor,
      const PartTensors& tensors,
      const PartTensors* before) {
    std::vector<Run> runs;
    std::vector<runtime::UpdateTensors> begin_from;
    for (size_t i = 0; i < spans.size(); ++i) {
      runs.push_back({views(tensors, spans[i]), steps[i]});
      runs.back().tensors.grad_factor = grad_factor;
      if (before != nullptr) {
        begin_from.push_back(views(*before, spans[i]));
      }
    }
    kernel(runs, begin_from);
  }

  static void stream(
      StreamedUpdate& streamed,
      bool master_on_host,
      Kernel kernel,
      const std::vector<SpanUpdate>& spans,
      const std::vector<Step>& steps,
      const PartTensors& tensors) {
    std::vector<StreamedRun> runs;
    for (const SpanUpdate& span : spans) {
      runs.push_back({views(tensors, span), master_on_host});
    }
    streamed.run(runs, [&](const std::vector<StreamedPiece>& pieces) {
      std::vector<Run> now;
      for (const StreamedPiece& piece : pieces) {
        now.push_back({piece.tensors, steps[piece.run]});
        now.back().step.rounding.first_element +=
            static_cast<uint64_t>(piece.begin);
      }
      kernel(now, {});
    });
  }

  static runtime::UpdateTensors views(
      const PartTensors& all,
      const SpanUpdate& span) {
    return tensors_of(all, span.shard_offset, span.state_offset, span.numel);
  }

  Kernel kernel_;
  MakeStep make_step_;
};

} // namespace

std::unique_ptr<UpdateMethod> make_adam(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const AdamWOptions& options,
    bool decoupled_decay) {
  return std::make_unique<ElementwiseMethod<runtime::AdamWRun>>(
      context,
      parameters,
      std::vector<std::string>{"exp_avg", "exp_avg_sq"},
      &runtime::adamw_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        runtime::AdamWStep step;
        step.lr = input.lr_of(parameter);
        step.beta1 = options.beta1;
        step.beta2 = options.beta2;
        step.eps = options.eps;
        step.weight_decay = parameter.settings.weight_decay;
        step.decoupled_decay = decoupled_decay;
        step.step = parameter.steps;
        step.grad_scale = parameter.grad_scale;
        return step;
      });
}

std::unique_ptr<UpdateMethod> make_sgd(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const SgdOptions& options) {
  std::vector<std::string> state;
  if (options.momentum != 0) {
    state.emplace_back("momentum_buffer");
  }
  return std::make_unique<ElementwiseMethod<runtime::SgdRun>>(
      context,
      parameters,
      std::move(state),
      &runtime::sgd_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        runtime::SgdStep step;
        step.lr = input.lr_of(parameter);
        step.momentum = options.momentum;
        step.dampening = options.dampening;
        step.weight_decay = parameter.settings.weight_decay;
        step.nesterov = options.nesterov;
        step.step = parameter.steps;
        step.grad_scale = parameter.grad_scale;
        return step;
      });
}

std::unique_ptr<UpdateMethod> make_lion(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const LionOptions& options) {
  return std::make_unique<ElementwiseMethod<runtime::LionRun>>(
      context,
      parameters,
      std::vector<std::string>{"exp_avg"},
      &runtime::lion_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        runtime::LionStep step;
        step.lr = input.lr_of(parameter);
        step.beta1 = options.beta1;
        step.beta2 = options.beta2;
        step.weight_decay = parameter.settings.weight_decay;
        step.grad_scale = parameter.grad_scale;
        return step;
      });
}

} // namespace tessera::engine
