// SPDX-License-Identifier: Apache-2.0
// `OneBitLambMethod`: trust ratios that follow from compressed momentum.
#include "tessera/engine/optim/optimizers/one_bit_lamb.h"

#include "tessera/engine/optim/one_bit_method.h"
#include "tessera/engine/optim/one_bit_optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"
#include "tessera/runtime/kernels/flat_shard.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace tessera {

namespace engine {

namespace {

class OneBitLambMethod : public OneBitMethod {
 public:
  OneBitLambMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const OneBitLambOptions& options)
      : OneBitMethod(
            "1-bit LAMB",
            context,
            parameters,
            {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"},
            {}),
        options_(options) {
    for (const OptimizedParameter* parameter : parameters) {
      const at::Tensor numbers = at::zeros({kNumbers}, at::kDouble);
      numbers[kMomentumFactor] = 1;
      numbers[kLastFactor] = 1;
      numbers_.emplace(parameter, numbers);
    }
  }

  void visit_state(StateVisitor& visitor) override {
    OneBitMethod::visit_state(visitor);
    for (const MethodShard& part : parts_) {
      for (const ParameterSegment& segment : part.segments) {
        visitor.replicated(
            *segment.parameter, "lamb_ratios", numbers_.at(segment.parameter));
      }
    }
  }

 private:
  /// Of a parameter, the same on all ranks.
  enum Number : int64_t {
    kAverageRatio,
    kMomentumFactor,
    kLastFactor,
    kNumbers,
  };
  static constexpr size_t kMomentum = 0;
  static constexpr size_t kFrozen = 1;
  static constexpr size_t kFresh = 2;

  double& number(const OptimizedParameter& parameter, Number which) const {
    return numbers_.at(&parameter).mutable_data_ptr<double>()[which];
  }
  bool averages(int64_t step) const override {
    return step <= options_.freeze_step;
  }
  double beta1() const override {
    return options_.beta1;
  }
  double momentum_factor(const OptimizedParameter& parameter) const override {
    return number(parameter, kMomentumFactor);
  }
  static double correction_of(double beta, const Segment& segment) {
    return runtime::bias_correction(beta, segment.parameter.steps);
  }
  static double norm_of(const at::Tensor& values) {
    return values.norm(2, at::kDouble).item<double>();
  }

  /// The direction of AdamW before weight decay.
  at::Tensor direction_of(const Segment& segment, double second_correction)
      const {
    return segment.state(kMomentum)
        .div(correction_of(options_.beta1, segment))
        .div_(segment.state(kFrozen)
                  .div(second_correction)
                  .sqrt_()
                  .add_(options_.eps));
  }
  static void apply(
      const Segment& segment,
      const at::Tensor& direction,
      double rate) {
    segment.master().sub_(
        direction.to(segment.shard.master.scalar_type()), rate);
    segment.round();
  }

  void averaged_step(const StepInput& input, int64_t step) override {
    for_each_segment(input, [&](const Segment& segment) {
      add_to_moments(segment, options_.beta2);
      const at::Tensor direction =
          direction_of(segment, correction_of(options_.beta2, segment))
              .add_(segment.master(), segment.parameter.settings.weight_decay);
      const double weights = norm_of(segment.master());
      const double moves = norm_of(direction);
      double ratio = 1;
      if (weights > 0 && moves > 0) {
        ratio = std::min(weights / moves, options_.max_trust_ratio);
      }
      double& average = number(segment.parameter, kAverageRatio);
      average = segment.parameter.steps == 1
                    ? ratio
                    : options_.ratio_beta * average +
                          (1 - options_.ratio_beta) * ratio;
      apply(segment, direction, input.lr_of(segment.parameter) * ratio);
    });
    if (step == options_.freeze_step) {
      freeze(input);
    }
  }

  /// What the last of these steps divided by stays, and the momentum of all
  /// parameters is scaled to the mean of their root mean squares.
  void freeze(const StepInput& input) {
    std::map<const OptimizedParameter*, double> sizes;
    double mean = 0;
    for_each_segment(input, [&](const Segment& segment) {
      segment.state(kFrozen).div_(correction_of(options_.beta2, segment));
      segment.state(kFresh).copy_(segment.state(kFrozen));
      const double size = norm_of(segment.state(kMomentum)) /
                          std::sqrt(static_cast<double>(segment.segment.numel));
      sizes[&segment.parameter] = size;
      mean += size;
    });
    mean /= static_cast<double>(std::max<size_t>(sizes.size(), 1));
    for (const auto& [parameter, size] : sizes) {
      if (size > 0) {
        number(*parameter, kMomentumFactor) = mean / size;
      }
    }
  }

  void receive(const Segment& segment, const at::Tensor& momentum) override {
    const at::Tensor gradient =
        momentum.sub(segment.state(kMomentum), options_.beta1)
            .div_(1 - options_.beta1);
    segment.state(kFresh)
        .mul_(options_.beta2)
        .addcmul_(gradient, gradient, 1 - options_.beta2);
    OneBitMethod::receive(segment, momentum);
  }

  void update(const Segment& segment, const StepInput& input, int64_t /*step*/)
      override {
    const OptimizedParameter& parameter = segment.parameter;
    const at::Tensor direction = direction_of(segment, 1);
    const double before_decay = norm_of(direction);
    direction.add_(segment.master(), parameter.settings.weight_decay);
    const double moves = norm_of(direction);
    const double share = moves > 0 ? std::min(1.0, before_decay / moves) : 1;
    const auto root = [&](size_t state) {
      return segment.state(state).sqrt().add_(options_.eps);
    };
    const double largest =
        root(kFrozen).div_(root(kFresh)).max().item<double>();
    double& last = number(parameter, kLastFactor);
    const double factor = std::clamp(
        std::clamp(
            largest * share + 1 - share,
            options_.min_factor,
            options_.max_factor),
        last * (1 - options_.factor_change),
        last * (1 + options_.factor_change));
    last = factor;
    apply(
        segment,
        direction,
        input.lr_of(parameter) * number(parameter, kAverageRatio) * factor);
  }

  OneBitLambOptions options_;
  std::map<const OptimizedParameter*, at::Tensor> numbers_; ///< by Number
};

class OneBitLamb
    : public OneBitOptimizer<OneBitLambOptions, OneBitLambMethod, 3> {
 public:
  const char* name() const override {
    return "1-bit LAMB";
  }
  const char* key() const override {
    return "one_bit_lamb";
  }

 private:
  void fields(runtime::OptionFields& fields, OneBitLambOptions& options)
      const override {
    visit_adam_fields(fields, options);
    const runtime::DoubleRange positive{.min = 0, .open_min = true};
    fields.field(
        "max_trust_ratio",
        options.max_trust_ratio,
        positive,
        "maximum ratio of the norms of parameter and update");
    fields.field(
        "freeze_step",
        options.freeze_step,
        {.min = 1},
        "steps with averaged gradients, before momentum is exchanged in one bit per element");
    fields.field(
        "ratio_beta",
        options.ratio_beta,
        kBetaRange,
        "decay rate of the average of that ratio in these steps");
    fields.field(
        "min_factor",
        options.min_factor,
        positive,
        "of the average, afterwards");
    fields.field(
        "max_factor",
        options.max_factor,
        positive,
        "of the average, afterwards");
    fields.field(
        "factor_change",
        options.factor_change,
        {.min = 0, .max = 1, .open_max = true},
        "by which the factor changes at most from step to step, of itself");
  }
  void check_options(const OneBitLambOptions& options) const override {
    TESSERA_CHECK(
        options.min_factor <= options.max_factor,
        "optimizer.min_factor is {}, above optimizer.max_factor, {}.",
        options.min_factor,
        options.max_factor);
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<OneBitLambOptions> /*options*/) {
  static const engine::OneBitLamb lamb;
  return lamb;
}

} // namespace tessera
