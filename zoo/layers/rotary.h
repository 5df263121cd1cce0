// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embeddings (arXiv:2104.09864), in both layouts, and the ways
// to stretch them over longer texts.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// Which two features are rotated together.
enum class RotaryLayout {
  kHalves, ///< i and i + n / 2: GPT-NeoX, LLaMA
  kPairs, ///< 2i and 2i + 1: GPT-J, ChatGLM
};

enum class RotaryScalingKind {
  kNone,
  kLinear, ///< all frequencies divided by `factor` (arXiv:2306.15595)
  kDynamic, ///< the base grows with texts beyond max_positions (NTK)
  kLlama3, ///< low frequencies divided, high ones kept, a ramp between
  kYarn, ///< the same by rotations, and a temperature (arXiv:2309.00071)
};

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::kNone;
  double factor = 1;
  /// The length that the model was first trained for: kLlama3, kYarn.
  int64_t original_positions = 0;
  double low_frequency_factor = 1; ///< kLlama3
  double high_frequency_factor = 4; ///< kLlama3
  double beta_fast = 32; ///< kYarn: rotations above which nothing changes
  double beta_slow = 1; ///< kYarn: rotations below which all is divided
  /// kYarn: of cosines and sines; by default from factor and the two mscales.
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_features = 0;
  bool truncate = true; ///< kYarn: the ramp's ends are whole features
};

struct RotaryOptions {
  int64_t features = 0; ///< that are rotated, of each head; even
  double base = 10000;
  RotaryLayout layout = RotaryLayout::kHalves;
  RotaryScaling scaling;
  int64_t max_positions = 0; ///< kDynamic: the length that the base is for
};

struct RotaryFrequencies {
  at::Tensor inverse; ///< float32 [features / 2], radians for each position
  double amplitude = 1; ///< of cosines and sines
};

/// @param length of the text, which kDynamic depends on.
/// @throws tessera::Error on options that make no rotation.
RotaryFrequencies rotary_frequencies(
    const RotaryOptions& options,
    int64_t length);

/// What rotate() needs, computed once for all layers.
struct RotaryTables {
  at::Tensor cosines; ///< [1 or batch, 1, sequence, features / 2]
  at::Tensor sines;
  RotaryLayout layout = RotaryLayout::kHalves;
};

template <typename Visit>
void visit_tensors_of(RotaryTables& tables, Visit&& visit) {
  visit(tables.cosines);
  visit(tables.sines);
}

/// @param position_ids int64 [1 or batch, sequence].
/// @param length greatest position + 1, for kDynamic.
/// @param dtype of the tables; angles are float32.
RotaryTables rotary_tables(
    const RotaryOptions& options,
    const at::Tensor& position_ids,
    int64_t length,
    at::ScalarType dtype);

/// Rotates the first features of each head; x [batch, heads, sequence, n].
at::Tensor rotate(const at::Tensor& x, const RotaryTables& tables);

} // namespace tessera::zoo
