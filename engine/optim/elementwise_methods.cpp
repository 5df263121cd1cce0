// SPDX-License-Identifier: Apache-2.0
// The optimizers that update every element alone, by one fused kernel each.
#include "tessera/engine/optim/update_method.h"
#include "tessera/runtime/kernels/update_runs.h"

#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// @tparam Run what the kernel takes; its step is made by `make_step`.
template <typename Run>
class ElementwiseMethod : public UpdateMethod {
 public:
  using Step = decltype(Run::step);
  using MakeStep =
      std::function<Step(const OptimizedParameter&, const StepInput&)>;

  ElementwiseMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      std::vector<std::string> state_names,
      bool (*kernel)(std::span<const Run>),
      MakeStep make_step)
      : UpdateMethod(context, parameters, std::move(state_names)),
        kernel_(kernel),
        make_step_(std::move(make_step)) {}

  void step(const StepInput& input) override {
    for_each_part(
        active_parts(), {}, [&](ShardPart& part, const ShardTensors& shard) {
          update(part, shard, input);
        });
  }

  void update_group(size_t g, const StepInput& input) override {
    std::vector<ShardPart*> parts = active_parts();
    std::erase_if(
        parts, [g](const ShardPart* part) { return part->group != g; });
    for_each_part(parts, {}, [&](ShardPart& part, const ShardTensors& shard) {
      update(part, shard, input);
    });
  }

 private:
  void update(
      const ShardPart& part,
      const ShardTensors& shard,
      const StepInput& input) {
    std::vector<Run> runs;
    for (const UpdateSpan& span :
         active_spans(part, *context_.pager.bucket(part.group))) {
      runs.push_back(
          {tensors_of(part, shard, span), make_step_(*span.parameter, input)});
      runs.back().step.rounding = rounding_of(part, span);
    }
    if (context_.streams[part.group]) {
      update_streamed(part, runs);
    } else {
      kernel_(runs);
    }
  }

  void update_streamed(const ShardPart& part, const std::vector<Run>& runs) {
    const bool master_on_host = context_.access[part.group]->streams_master();
    std::vector<StreamedRun> streamed;
    for (const Run& run : runs) {
      streamed.push_back({run.tensors, master_on_host});
    }
    context_.streamed.run(
        streamed, [&](const std::vector<StreamedPiece>& pieces) {
          std::vector<Run> now;
          for (const StreamedPiece& piece : pieces) {
            now.push_back(runs[piece.run]);
            now.back().tensors = piece.tensors;
            now.back().step.rounding.first_element +=
                static_cast<uint64_t>(piece.begin);
          }
          kernel_(now);
        });
  }

  bool (*kernel_)(std::span<const Run>);
  MakeStep make_step_;
};

} // namespace

std::unique_ptr<UpdateMethod> make_adam(
    UpdateContext& context,
    const std::vector<OptimizedParameter*>& parameters,
    const AdamWOptions& options,
    bool decoupled_decay) {
  return std::make_unique<ElementwiseMethod<AdamWRun>>(
      context,
      parameters,
      std::vector<std::string>{"exp_avg", "exp_avg_sq"},
      &adamw_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        AdamWStep step;
        step.lr = input.lr_of(parameter);
        step.beta1 = options.beta1;
        step.beta2 = options.beta2;
        step.eps = options.eps;
        step.weight_decay = parameter.settings.weight_decay;
        step.decoupled_decay = decoupled_decay;
        step.step = parameter.steps;
        step.grad_scale = parameter.grad_scale;
        step.sqrt_rounding = options.sqrt_rounding;
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
  return std::make_unique<ElementwiseMethod<SgdRun>>(
      context,
      parameters,
      std::move(state),
      &sgd_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        SgdStep step;
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
  return std::make_unique<ElementwiseMethod<LionRun>>(
      context,
      parameters,
      std::vector<std::string>{"exp_avg"},
      &lion_runs_,
      [=](const OptimizedParameter& parameter, const StepInput& input) {
        LionStep step;
        step.lr = input.lr_of(parameter);
        step.beta1 = options.beta1;
        step.beta2 = options.beta2;
        step.weight_decay = parameter.settings.weight_decay;
        step.grad_scale = parameter.grad_scale;
        return step;
      });
}

} // namespace tessera
