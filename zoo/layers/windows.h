// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that cut feature maps into square windows for attention
// (arXiv:2103.14030).

#include "tessera/zoo/layers/patch_embedding.h"

namespace tessera::zoo {

/// Pads [B, H, W, C] with zeros at the bottom and right to multiples of
/// `window`.
at::Tensor padded_to_windows(const at::Tensor& map, int64_t window);

/// [B, H, W, C] -> [B windows, window^2, C]; H and W must be multiples of
/// `window`.
at::Tensor to_windows(const at::Tensor& map, int64_t window);

/// The inverse of to_windows(), for a map of this size.
at::Tensor from_windows(
    const at::Tensor& windows,
    int64_t window,
    const ImageSize& size);

/// The attention bias of windows of a map that has been shifted by -shift:
/// [windows, window^2, window^2], 0 between positions that belonged together
/// before the shift and -100 elsewhere; to be added to scores.
at::Tensor shift_scores(
    const ImageSize& size,
    int64_t window,
    int64_t shift,
    const at::TensorOptions& options);

/// The row, in a table of (2 window - 1)^2 relative positions, of each pair of
/// positions in a window: int64 [window^2, window^2].
at::Tensor window_distances(int64_t window, const at::Device& device);

} // namespace tessera::zoo
