// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embeddings (arXiv:2104.09864) in both layouts, with the
// scaling methods for longer sequences.

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
  kDynamic, ///< the base grows with sequences beyond max_positions (NTK)
  kLlama3, ///< low frequencies divided, high ones kept, a ramp in between
  /// the same, by number of rotations, and a temperature (arXiv:2309.00071)
  kYarn,
};

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::kNone;
  double factor = 1;
  /// kLlama3, kYarn: the sequence length of the original training.
  int64_t original_positions = 0;
  double low_frequency_factor = 1; ///< kLlama3
  double high_frequency_factor = 4; ///< kLlama3
  double beta_fast = 32; ///< kYarn: rotations above which nothing changes
  /// kYarn: rotations below which frequencies are divided by `factor`
  double beta_slow = 1;
  /// kYarn: the scale of cosines and sines; by default computed from factor and
  /// the two mscales.
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_features = 0;
  /// kYarn: the ramp's ends are rounded to whole features
  bool truncate = true;
};

struct RotaryOptions {
  int64_t features = 0; ///< rotated features of each head; even
  double base = 10000;
  RotaryLayout layout = RotaryLayout::kHalves;
  RotaryScaling scaling;
  int64_t max_positions = 0; ///< kDynamic: the length that `base` is meant for
};

struct RotaryFrequencies {
  at::Tensor inverse; ///< float32 [features / 2], radians per position
  double amplitude = 1; ///< scale of cosines and sines
};

/// @param length of the sequence, which kDynamic depends on.
/// @throws tessera::Error on invalid options.
RotaryFrequencies rotary_frequencies(
    const RotaryOptions& options,
    int64_t length);

/// The tables that rotate() reads, computed once for all layers.
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
/// @param length largest position + 1, for kDynamic.
/// @param dtype of the tables; angles are float32.
RotaryTables rotary_tables(
    const RotaryOptions& options,
    const at::Tensor& position_ids,
    int64_t length,
    at::ScalarType dtype);

/// Rotates the first features of each head; x [batch, heads, sequence, n].
at::Tensor rotate(const at::Tensor& x, const RotaryTables& tables);

} // namespace tessera::zoo
