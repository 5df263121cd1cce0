// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/windows.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

/// Added to scores of positions that do not belong together; e^-100 is 0.
constexpr double kApart = -100;

/// The part, of three, of a shifted axis that each position is in.
at::Tensor parts_of_axis(
    int64_t length,
    int64_t window,
    int64_t shift,
    const at::Device& device) {
  const at::Tensor positions =
      torch::arange(length, at::TensorOptions(at::kLong).device(device));
  return positions.ge(length - window).to(at::kLong) +
         positions.ge(length - shift);
}

} // namespace

at::Tensor padded_to_windows(const at::Tensor& map, int64_t window) {
  const auto missing = [&](int64_t length) {
    return (window - length % window) % window;
  };
  const int64_t below = missing(map.size(1));
  const int64_t right = missing(map.size(2));
  return below == 0 && right == 0
             ? map
             : at::constant_pad_nd(map, {0, 0, 0, right, 0, below});
}

at::Tensor to_windows(const at::Tensor& map, int64_t window) {
  return map.unflatten(1, {-1, window})
      .unflatten(3, {-1, window})
      .transpose(2, 3)
      .reshape({-1, window * window, map.size(3)});
}

at::Tensor from_windows(
    const at::Tensor& windows,
    int64_t window,
    const ImageSize& size) {
  return windows
      .view(
          {-1,
           size.height / window,
           size.width / window,
           window,
           window,
           windows.size(2)})
      .transpose(2, 3)
      .reshape({-1, size.height, size.width, windows.size(2)});
}

at::Tensor shift_scores(
    const ImageSize& size,
    int64_t window,
    int64_t shift,
    const at::TensorOptions& options) {
  const auto part = [&](int64_t length) {
    return parts_of_axis(length, window, shift, options.device());
  };
  const at::Tensor parts =
      part(size.height).unsqueeze(1) * 3 + part(size.width);
  const at::Tensor of_windows =
      to_windows(parts.unsqueeze(0).unsqueeze(3), window).squeeze(-1);
  return of_windows.unsqueeze(1).ne(of_windows.unsqueeze(2)).to(options) *
         kApart;
}

at::Tensor window_distances(int64_t window, const at::Device& device) {
  const at::Tensor positions =
      torch::arange(window, at::TensorOptions(at::kLong).device(device));
  const at::Tensor rows = positions.repeat_interleave(window);
  const at::Tensor columns = positions.repeat({window});
  const auto distance = [&](const at::Tensor& axis) {
    return axis.unsqueeze(1) - axis.unsqueeze(0) + (window - 1);
  };
  return distance(rows) * (2 * window - 1) + distance(columns);
}

} // namespace tessera::zoo
