// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/one_bit_adam.h"

#include "tessera/engine/optim/one_bit_method.h"
#include "tessera/engine/optim/one_bit_optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"
#include "tessera/runtime/kernels/flat_shard.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace tessera {

namespace engine {

namespace {

using runtime::bias_correction;

constexpr size_t kSecondMoment = 1;

/// The momentum divided by the root of the second moment, with decoupled weight
/// decay. @param correction of the momentum and of the second moment.
void update_like_adamw(
    const at::Tensor& master,
    const at::Tensor& momentum,
    const at::Tensor& second,
    double eps,
    double lr,
    double weight_decay,
    std::pair<double, double> correction) {
  const at::Tensor root = second.div(correction.second).sqrt_().add_(eps);
  master.mul_(1 - lr * weight_decay);
  master.addcdiv_(
      momentum.to(master.scalar_type()), root, -lr / correction.first);
}

class OneBitAdamMethod : public OneBitMethod {
 public:
  OneBitAdamMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const OneBitAdamOptions& options)
      : OneBitMethod(
            "1-bit Adam",
            context,
            parameters,
            {"exp_avg", "exp_avg_sq"},
            [options](
                const OptimizedParameter& parameter,
                const StepInput& input) -> Step {
              return parameter_step(adamw_step(options), parameter, input);
            }),
        options_(options) {}

 private:
  bool averages(int64_t step) const override {
    return step <= options_.freeze_step;
  }
  double beta1() const override {
    return options_.beta1;
  }

  void averaged_step(const StepInput& input, int64_t step) override {
    ElementwiseMethod::step(input);
    if (step < options_.freeze_step) {
      return;
    }
    // What the last of these steps divided by stays.
    for_each_part(
        input,
        all_parts(),
        {.weights = false},
        [&](MethodShard& part, const offload::ShardTensors& shard) {
          for (const ParameterSegment& segment : part.segments) {
            if (segment.parameter->steps > 0) {
              shard.state[kSecondMoment]
                  .narrow(0, segment.state_offset, segment.numel)
                  .div_(bias_correction(
                      options_.beta2, segment.parameter->steps));
            }
          }
        });
  }

  void update(const Segment& segment, const StepInput& input, int64_t /*step*/)
      override {
    const OptimizedParameter& parameter = segment.parameter;
    update_like_adamw(
        segment.master(),
        segment.state(0),
        segment.state(kSecondMoment),
        options_.eps,
        input.lr_of(parameter),
        parameter.settings.weight_decay,
        {bias_correction(options_.beta1, parameter.steps), 1});
    segment.round();
  }

  std::vector<MethodShard*> all_parts() {
    std::vector<MethodShard*> all;
    for (MethodShard& part : parts_) {
      all.push_back(&part);
    }
    return all;
  }

  OneBitAdamOptions options_;
};

/// The steps that update the second moment: `scaler` of them at each distance,
/// which is 1, 2, 4, ..., up to the last one.
class VarianceSteps {
 public:
  VarianceSteps(int64_t last_step, int64_t scaler)
      : last_step_(last_step), scaler_(scaler) {}

  bool contains(int64_t step) const {
    return step <= last_step_ && count_until(step) > count_until(step - 1);
  }
  /// How many there are up to and including `step`.
  int64_t count_until(int64_t step) const {
    int64_t left = std::min(step, last_step_);
    int64_t count = 0;
    for (int64_t distance = 1; left >= distance; distance *= 2) {
      const int64_t some = std::min(scaler_, left / distance);
      count += some;
      left -= some * distance;
      if (some < scaler_) {
        break;
      }
    }
    return count;
  }

 private:
  int64_t last_step_;
  int64_t scaler_;
};

class ZeroOneAdamMethod : public OneBitMethod {
 public:
  ZeroOneAdamMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const ZeroOneAdamOptions& options)
      : OneBitMethod(
            "0/1 Adam",
            context,
            parameters,
            {"exp_avg", "exp_avg_sq"},
            {}),
        options_(options),
        variance_(options.var_freeze_step, options.var_update_scaler) {}

 private:
  bool averages(int64_t step) const override {
    return variance_.contains(step);
  }
  double beta1() const override {
    return options_.beta1;
  }

  void averaged_step(const StepInput& input, int64_t step) override {
    for_each_segment(input, [&](const Segment& segment) {
      add_to_moments(segment, options_.beta2);
      update(segment, input, step);
    });
  }

  void update(const Segment& segment, const StepInput& input, int64_t step)
      override {
    const OptimizedParameter& parameter = segment.parameter;
    update_like_adamw(
        segment.master(),
        segment.state(0),
        segment.state(kSecondMoment),
        options_.eps,
        input.lr_of(parameter),
        parameter.settings.weight_decay,
        {bias_correction(options_.beta1, parameter.steps),
         bias_correction(options_.beta2, variance_.count_until(step))});
    segment.round();
  }

  ZeroOneAdamOptions options_;
  VarianceSteps variance_;
};

class OneBitAdam : public OneBitOptimizer<OneBitAdamOptions, OneBitAdamMethod> {
 public:
  const char* name() const override {
    return "1-bit Adam";
  }
  const char* key() const override {
    return "one_bit_adam";
  }

 private:
  void fields(runtime::OptionFields& fields, OneBitAdamOptions& options)
      const override {
    visit_adam_fields(fields, options);
    fields.field(
        "freeze_step",
        options.freeze_step,
        {.min = 1},
        "steps with averaged gradients, before momentum is exchanged in one bit per element");
  }
};

class ZeroOneAdam
    : public OneBitOptimizer<ZeroOneAdamOptions, ZeroOneAdamMethod> {
 public:
  const char* name() const override {
    return "0/1 Adam";
  }
  const char* key() const override {
    return "zero_one_adam";
  }

 private:
  void fields(runtime::OptionFields& fields, ZeroOneAdamOptions& options)
      const override {
    visit_adam_fields(fields, options);
    fields.field(
        "var_freeze_step",
        options.var_freeze_step,
        {.min = 1},
        "the last step in which the second moment may be updated");
    fields.field(
        "var_update_scaler",
        options.var_update_scaler,
        {.min = 1},
        "updates of the second moment after which their distance doubles");
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<OneBitAdamOptions> /*options*/) {
  static const engine::OneBitAdam adam;
  return adam;
}

const engine::Optimizer& optimizer_of(
    std::type_identity<ZeroOneAdamOptions> /*options*/) {
  static const engine::ZeroOneAdam adam;
  return adam;
}

} // namespace tessera
