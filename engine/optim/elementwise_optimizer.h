// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ElementwiseOptimizer` is the base of optimizers that update every element
// independently, by one fused kernel.

#include "tessera/engine/optim/optimizer.h"
#include "tessera/offload/updates/fused_update.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <algorithm>
#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// The updates of one fused kernel; `make_step` makes its steps.
class ElementwiseMethod : public UpdateMethod {
 public:
  using Step = runtime::UpdateStep;
  using MakeStep =
      std::function<Step(const OptimizedParameter&, const StepInput&)>;

  ElementwiseMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      std::vector<std::string> state_names,
      MakeStep make_step)
      : UpdateMethod(context, parameters, std::move(state_names)),
        make_step_(std::move(make_step)) {}

  void step(const StepInput& input) override {
    for_each_part(
        input,
        active_parts(),
        {},
        [&](MethodShard& part, const offload::ShardTensors& tensors) {
          prepare(input.pager->pages()[part.group], part, input)
              .run(tensors, nullptr);
        });
  }

  bool is_elementwise() const override {
    return true;
  }

  std::optional<offload::StateUpdate> prepare(
      const sharding::Page& page,
      const StepInput& input) override {
    const auto number = static_cast<size_t>(page.number());
    const auto part = std::find_if(
        parts_.begin(), parts_.end(), [number](const auto& candidate) {
          return candidate.group == number;
        });
    if (part == parts_.end()) {
      return std::nullopt;
    }
    offload::StateUpdate update = prepare(page, *part, input);
    return update.spans.empty() ? std::nullopt : std::optional(update);
  }

 private:
  offload::StateUpdate prepare(
      const sharding::Page& page,
      MethodShard& part,
      const StepInput& input) {
    page.check_values();
    offload::StateUpdate update;
    update.page = part.group;
    update.state = part.state.get();
    update.gradient = page.gradients->shard();
    std::vector<Step> steps;
    at::Tensor grad_factor; // of the page
    for (const ActiveSpan& span : active_spans(part)) {
      const OptimizedParameter& parameter = *span.parameter;
      grad_factor = parameter.grad_factor;
      update.spans.push_back(
          {span,
           parameter.steps,
           input.lr_of(parameter),
           parameter.grad_scale});
      steps.push_back(make_step_(parameter, input));
      runtime::rounding_of(steps.back()) = rounding_of(part, span);
    }
    update.run = offload::fused_update(
        *part.state, update.spans, std::move(steps), std::move(grad_factor));
    return update;
  }

  MakeStep make_step_;
};

/// @tparam Step_ one of runtime::FusedSteps.
template <typename Options, typename Step_>
class ElementwiseOptimizer : public OptimizerWith<Options> {
 public:
  bool updates_elements_alone() const final {
    return true;
  }
  bool takes_moment_dtype() const final {
    return true;
  }
  void update(const runtime::UpdateTensors& tensors, const std::any& options)
      const final {
    OptimizedParameter parameter;
    parameter.steps = 2; // the first one may be simpler
    const runtime::UpdateSegment segment{
        tensors, parameter_step(step(this->of(options)), parameter, {})};
    runtime::update_segments_({&segment, 1});
  }

 protected:
  using Step = Step_;

  /// Of the flat state tensors, in the order in which the kernel takes them.
  virtual std::vector<std::string> state_names(
      const Options& options) const = 0;
  /// The kernel's numbers that follow from the options; parameter_step() adds
  /// those of a parameter.
  virtual Step step(const Options& options) const = 0;

 private:
  int moments(const Options& options) const final {
    return static_cast<int>(state_names(options).size());
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const Options& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const final {
    methods.push_back(std::make_unique<ElementwiseMethod>(
        context,
        parameters,
        state_names(options),
        [this, options](
            const OptimizedParameter& parameter, const StepInput& input) {
          // Of another type where another optimizer leaves parameters to this
          // one, as Muon does.
          const auto* local =
              std::any_cast<Options>(&parameter.settings.rule.options());
          return parameter_step(
              step(local != nullptr ? *local : options), parameter, input);
        }));
  }
};

} // namespace tessera::engine
