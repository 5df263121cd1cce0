// SPDX-License-Identifier: Apache-2.0
#pragma once
// Maps of features cut into square windows, which attention stays within
// (arXiv:2103.14030).

#include "tessera/zoo/layers/patch_embedding.h"

namespace tessera::zoo {

/// [B, H, W, C] with zeros below and to the right, until windows divide it.
at::Tensor padded_to_windows(const at::Tensor& map, int64_t window);

/// [B, H, W, C] -> [B windows, window^2, C]; windows divide the map.
at::Tensor to_windows(const at::Tensor& map, int64_t window);

/// The map of this size again.
at::Tensor from_windows(
    const at::Tensor& windows,
    int64_t window,
    const ImageSize& size);

/// For windows of a map that has been shifted by -shift: which places were
/// together before. [windows, window^2, window^2], 0 where they were and -100
/// elsewhere, to be added to scores.
at::Tensor shift_scores(
    const ImageSize& size,
    int64_t window,
    int64_t shift,
    const at::TensorOptions& options);

/// The row of a table of (2 window - 1)^2 distances for each two places of a
/// window: int64 [window^2, window^2].
at::Tensor window_distances(int64_t window, const at::Device& device);

} // namespace tessera::zoo
