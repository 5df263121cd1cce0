// SPDX-License-Identifier: Apache-2.0
#pragma once
// Initial values that can be made for any part of a parameter by itself, the
// same whoever makes them.

#include "tessera/runtime/kernels/counter_random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera {

/// Where a slice lies, and what it may draw from.
struct InitPlace {
  at::IntArrayRef sizes; ///< of the whole parameter
  int64_t first_element = 0; ///< of the slice, in the flattened parameter
  RandomStream random; ///< the parameter's own
};

/// Fills `slice` ([n], contiguous) in place. One of yours must give an element
/// what its index, the sizes and the stream say, and nothing else.
using InitMethod =
    std::function<void(const at::Tensor& slice, const InitPlace& place)>;

InitMethod constant_init(double value);
InitMethod zeros_init();
InitMethod ones_init();
InitMethod normal_init(double mean = 0, double std = 1);
InitMethod uniform_init(double low = 0, double high = 1);

/// Which way the variance is kept: of activations (in), of gradients (out).
enum class Fan { kIn, kOut };

/// Variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010).
/// These four need parameters of two dimensions or more: [out, in, ...].
InitMethod xavier_normal_init(double gain = 1);
InitMethod xavier_uniform_init(double gain = 1);

/// Variance 2 / ((1 + negative_slope^2) * fan) (arXiv:1502.01852).
InitMethod kaiming_normal_init(double negative_slope = 0, Fan fan = Fan::kIn);
InitMethod kaiming_uniform_init(double negative_slope = 0, Fan fan = Fan::kIn);

} // namespace tessera
