// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/rotary.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::zoo {

namespace {

/// Limit per head; more indicates a damaged file, and would waste memory.
constexpr int64_t kMostRotaryFeatures = 1 << 16;

/// [features / 2]: 2i / features.
at::Tensor exponents(const RotaryOptions& options) {
  return torch::arange(0, options.features, 2, torch::kFloat) /
         options.features;
}

at::Tensor plain_frequencies(const RotaryOptions& options, double base) {
  return 1.0 / torch::pow(base, exponents(options));
}

double dynamic_base(const RotaryOptions& options, int64_t length) {
  const auto trained = static_cast<double>(options.max_positions);
  const double stretched =
      std::max(trained, static_cast<double>(length)) / trained;
  const double factor = options.scaling.factor;
  const auto features = static_cast<double>(options.features);
  return options.base *
         std::pow(factor * stretched - (factor - 1), features / (features - 2));
}

at::Tensor llama3_frequencies(const RotaryOptions& options) {
  const RotaryScaling& scaling = options.scaling;
  const auto trained = static_cast<double>(scaling.original_positions);
  const at::Tensor plain = plain_frequencies(options, options.base);
  const at::Tensor wavelength = 2 * std::numbers::pi / plain;
  // 0: fully divided; 1: unchanged.
  const at::Tensor kept =
      ((trained / wavelength - scaling.low_frequency_factor) /
       (scaling.high_frequency_factor - scaling.low_frequency_factor))
          .clamp(0, 1);
  return (1 - kept) * plain / scaling.factor + kept * plain;
}

/// The feature pair that makes this many rotations over the trained length.
double pair_of_rotations(const RotaryOptions& options, double rotations) {
  const auto trained = static_cast<double>(options.scaling.original_positions);
  return static_cast<double>(options.features) *
         std::log(trained / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(options.base));
}

at::Tensor yarn_frequencies(const RotaryOptions& options) {
  const RotaryScaling& scaling = options.scaling;
  double low = pair_of_rotations(options, scaling.beta_fast);
  double high = pair_of_rotations(options, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.features - 1));
  if (low == high) {
    high += 0.001;
  }
  const at::Tensor divided =
      ((torch::arange(options.features / 2, torch::kFloat) - low) /
       (high - low))
          .clamp(0, 1);
  const at::Tensor plain = plain_frequencies(options, options.base);
  return plain / scaling.factor * divided + plain * (1 - divided);
}

double yarn_amplitude(const RotaryScaling& scaling) {
  const auto scale = [&](double mscale) {
    return scaling.factor <= 1 ? 1.0
                               : 0.1 * mscale * std::log(scaling.factor) + 1.0;
  };
  if (scaling.attention_factor) {
    return *scaling.attention_factor;
  }
  if (scaling.mscale != 0 && scaling.mscale_all_features != 0) {
    return scale(scaling.mscale) / scale(scaling.mscale_all_features);
  }
  return scale(1);
}

void check(const RotaryOptions& options) {
  TESSERA_CHECK(
      options.features >= 2 && options.features % 2 == 0 &&
          options.features <= kMostRotaryFeatures,
      "rotary positions rotate {} features of a head; it must be an even number up to {}",
      options.features,
      kMostRotaryFeatures);
  TESSERA_CHECK(
      options.base > 1,
      "the rotary base is {}; it must be above 1",
      options.base);
  const RotaryScaling& scaling = options.scaling;
  TESSERA_CHECK(
      scaling.factor > 0,
      "the rotary scaling factor is {}; it must be positive",
      scaling.factor);
  switch (scaling.kind) {
    case RotaryScalingKind::kDynamic:
      TESSERA_CHECK(
          options.max_positions >= 1 && options.features > 2,
          "dynamic rotary scaling needs max_positions, which is {}, and more than 2 features",
          options.max_positions);
      break;
    case RotaryScalingKind::kLlama3:
    case RotaryScalingKind::kYarn:
      TESSERA_CHECK(
          scaling.original_positions >= 1,
          "rotary scaling needs the sequence length that the model was originally trained for, which is {}",
          scaling.original_positions);
      TESSERA_CHECK(
          scaling.high_frequency_factor > scaling.low_frequency_factor,
          "rotary scaling: the high frequency factor {} must be above the low one, {}",
          scaling.high_frequency_factor,
          scaling.low_frequency_factor);
      break;
    default:
      break;
  }
}

} // namespace

RotaryFrequencies rotary_frequencies(
    const RotaryOptions& options,
    int64_t length) {
  check(options);
  switch (options.scaling.kind) {
    case RotaryScalingKind::kNone:
      break;
    case RotaryScalingKind::kLinear:
      return {
          plain_frequencies(options, options.base) / options.scaling.factor};
    case RotaryScalingKind::kDynamic:
      return {plain_frequencies(options, dynamic_base(options, length))};
    case RotaryScalingKind::kLlama3:
      return {llama3_frequencies(options)};
    case RotaryScalingKind::kYarn:
      return {yarn_frequencies(options), yarn_amplitude(options.scaling)};
  }
  return {plain_frequencies(options, options.base)};
}

RotaryTables rotary_tables(
    const RotaryOptions& options,
    const at::Tensor& position_ids,
    int64_t length,
    at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  const RotaryFrequencies frequencies = rotary_frequencies(options, length);
  const at::Tensor angles =
      (position_ids.to(torch::kFloat).unsqueeze(-1) *
       runtime::to_device(frequencies.inverse, position_ids.device()))
          .unsqueeze(1);
  return {
      (angles.cos() * frequencies.amplitude).to(dtype),
      (angles.sin() * frequencies.amplitude).to(dtype),
      options.layout};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTables& tables) {
  const int64_t half = tables.cosines.size(-1);
  const int64_t features = x.size(-1);
  TESSERA_CHECK(
      2 * half <= features,
      "rotary positions rotate {} features, but a head has {}",
      2 * half,
      features);
  const at::Tensor rotated =
      2 * half == features ? x : x.narrow(-1, 0, 2 * half);
  const bool pairs = tables.layout == RotaryLayout::kPairs;
  const at::Tensor split = pairs ? rotated.unflatten(-1, {half, 2})
                                 : rotated.unflatten(-1, {2, half});
  const int64_t dim = pairs ? -1 : -2;
  const at::Tensor a = split.select(dim, 0);
  const at::Tensor b = split.select(dim, 1);
  const at::Tensor result = at::stack(
                                {a * tables.cosines - b * tables.sines,
                                 b * tables.cosines + a * tables.sines},
                                dim)
                                .flatten(-2);
  return 2 * half == features
             ? result
             : at::cat(
                   {result, x.narrow(-1, 2 * half, features - 2 * half)}, -1);
}

} // namespace tessera::zoo
