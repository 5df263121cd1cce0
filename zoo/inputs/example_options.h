// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleOptions` says how batches are made of examples in files.

#include "tessera/zoo/inputs/example_draws.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::zoo {

/// (pixel * scale - mean) / std.
struct PixelOptions {
  std::optional<double> scale; ///< not given: 1 / 255 for bytes, else 1
  std::vector<double> mean; ///< per channel, or one for all; empty: 0
  std::vector<double> std; ///< likewise; empty: 1
};

void visit_fields(runtime::OptionFields& fields, PixelOptions& options);

/// Pixels as a model takes them: float32. @param pixels of any type.
at::Tensor prepared_pixels(
    const at::Tensor& pixels,
    const PixelOptions& pixel_options);

struct ExampleOptions {
  /// Drops positions that are padding in all rows of a batch, and masks that
  /// mask nothing.
  bool trim_padding = true;
  PixelOptions pixels;
  /// Masks tokens and makes labels from them, instead of using the file's
  /// labels.
  std::optional<TokenMaskOptions> token_mask;
  double patch_mask = 0.6; ///< fraction of patches, if the file has no masks
  uint64_t seed = 0; ///< of the random masks
  /// Sequence lengths must be a multiple of this, because ranks divide them.
  int64_t sequence_multiple = 1;
};

} // namespace tessera::zoo
