// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LossScaler` adapts the loss scale of float16 training.

#include <cstdint>
#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

struct LossScaleOptions {
  /// A constant scale; 1 disables scaling. By default the scale is dynamic with
  /// PrecisionPolicy::parameters of float16 and 1 without, also for a module
  /// that is float16 itself.
  std::optional<double> fixed;
  double initial = 65536;
  double growth_factor = 2; ///< after growth_interval steps without overflow
  double backoff_factor = 0.5; ///< after an overflow
  int64_t growth_interval = 2000;
  double minimum = 1;
};

void visit_fields(runtime::OptionFields& fields, LossScaleOptions& options);

/// @throws tessera::Error naming the option, its value and the allowed range.
void check(const LossScaleOptions& options);

/// The factor by which losses are multiplied before backward. All ranks call
/// update() with the same overflows and so have the same scale. Not collective.
class LossScaler {
 public:
  /// @param options checked.
  /// @param low_range whether the parameters are float16.
  LossScaler(const LossScaleOptions& options, bool low_range);

  double scale() const {
    return scale_;
  }
  /// Whether losses are scaled: steps whose gradients overflow are then
  /// skipped.
  bool is_active() const {
    return active_;
  }

  /// Records the outcome of a step: a dynamic scale shrinks after an overflow
  /// and grows after growth_interval steps without one.
  /// @throws tessera::Error if gradients overflow at the smallest dynamic
  ///   scale.
  void update(bool overflow);

  /// Lowers a dynamic scale to kLargestFloat16Scale, before the backward of a
  /// float16 loss: what such a loss is multiplied with is its gradient.
  /// @throws tessera::Error when a fixed scale is larger.
  void limit_for_float16_loss();
  /// The largest power of two in float16.
  static constexpr double kLargestFloat16Scale = 32768;

  int64_t skipped_steps() const {
    return skipped_steps_;
  }

  /// The values that a checkpoint keeps.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;
    int64_t skipped_steps = 0;
  };
  State state() const {
    return {scale_, good_steps_, skipped_steps_};
  }
  void restore(const State& state);

 private:
  LossScaleOptions options_;
  bool active_;
  double scale_;
  int64_t good_steps_ = 0; ///< since the scale last changed
  int64_t skipped_steps_ = 0;
};

} // namespace tessera
