// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/one_bit_adam.h"

#include "tessera/engine/optim/one_bit_method.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"
#include "tessera/runtime/kernels/update_rules.h"

#include <cmath>

namespace tessera {

namespace engine {

namespace {

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

double correction_of(double beta, int64_t steps) {
  return 1 - std::pow(beta, static_cast<double>(steps));
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
              runtime::AdamWStep step;
              step.lr = input.lr_of(parameter);
              step.beta1 = options.beta1;
              step.beta2 = options.beta2;
              step.eps = options.eps;
              step.weight_decay = parameter.settings.weight_decay;
              step.step = parameter.steps;
              step.grad_scale = parameter.grad_scale;
              return step;
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
        all_parts(),
        {.weights = false},
        [&](ShardPart& part, const offload::ShardTensors& shard) {
          for (const ParameterRun& run : part.runs) {
            if (run.parameter->steps > 0) {
              shard.state[kSecondMoment]
                  .narrow(0, run.state_offset, run.numel)
                  .div_(correction_of(options_.beta2, run.parameter->steps));
            }
          }
        });
  }

  void update(const Run& run, const StepInput& input, int64_t /*step*/)
      override {
    const OptimizedParameter& parameter = run.parameter;
    update_like_adamw(
        run.master(),
        run.state(0),
        run.state(kSecondMoment),
        options_.eps,
        input.lr_of(parameter),
        parameter.settings.weight_decay,
        {correction_of(options_.beta1, parameter.steps), 1});
    run.round();
  }

  std::vector<ShardPart*> all_parts() {
    std::vector<ShardPart*> all;
    for (ShardPart& part : parts_) {
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
    for_each_run([&](const Run& run) {
      const at::Tensor gradient = run.gradient().to(run.state(0).scalar_type());
      run.state(0).mul_(options_.beta1).add_(gradient, 1 - options_.beta1);
      run.state(kSecondMoment)
          .mul_(options_.beta2)
          .addcmul_(gradient, gradient, 1 - options_.beta2);
      update(run, input, step);
    });
  }

  void update(const Run& run, const StepInput& input, int64_t step) override {
    const OptimizedParameter& parameter = run.parameter;
    update_like_adamw(
        run.master(),
        run.state(0),
        run.state(kSecondMoment),
        options_.eps,
        input.lr_of(parameter),
        parameter.settings.weight_decay,
        {correction_of(options_.beta1, parameter.steps),
         correction_of(options_.beta2, variance_.count_until(step))});
    run.round();
  }

  ZeroOneAdamOptions options_;
  VarianceSteps variance_;
};

/// What the optimizers of this file have in common.
template <typename Options, typename Method>
class OneBitAdamFamily : public OptimizerWith<Options> {
 public:
  double default_weight_decay() const override {
    return 0.01;
  }
  bool sends_momentum() const override {
    return true;
  }
  bool may_rest_in_files() const override {
    return false;
  }

 private:
  /// The moments, and the errors of both sides.
  int moments(const Options& /*options*/) const override {
    return 4;
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const Options& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    methods.push_back(std::make_unique<Method>(context, parameters, options));
  }
};

class OneBitAdam
    : public OneBitAdamFamily<OneBitAdamOptions, OneBitAdamMethod> {
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
    : public OneBitAdamFamily<ZeroOneAdamOptions, ZeroOneAdamMethod> {
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
