// SPDX-License-Identifier: Apache-2.0
#pragma once
// `InitMethod` fills any slice of a parameter with initial values that do not
// depend on how the parameter is sharded.

#include "tessera/runtime/random/counter_random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera {

/// `InitPosition` tells an init method which slice it fills and which random
/// numbers it uses.
struct InitPosition {
  at::IntArrayRef sizes; ///< sizes of the whole parameter
  /// index of the slice's first element in the flattened parameter
  int64_t first_element = 0;
  RandomStream random; ///< random stream of the parameter
};

/// Fills `slice` ([n], contiguous) in place. In a custom method, the value of
/// an element must depend only on its index, the sizes and the random stream.
using InitMethod =
    std::function<void(const at::Tensor& slice, const InitPosition& position)>;

InitMethod constant_init(double value);
InitMethod zeros_init();
InitMethod ones_init();
InitMethod normal_init(double mean = 0, double std = 1);
InitMethod uniform_init(double low = 0, double high = 1);

/// The fan that preserves the variance: kIn of activations, kOut of gradients.
enum class Fan { kIn, kOut };

/// Variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010).
/// The Xavier and Kaiming methods need a parameter of two dimensions or more:
/// [out, in, ...].
InitMethod xavier_normal_init(double gain = 1);
InitMethod xavier_uniform_init(double gain = 1);

/// Variance 2 / ((1 + negative_slope^2) * fan) (arXiv:1502.01852).
InitMethod kaiming_normal_init(double negative_slope = 0, Fan fan = Fan::kIn);
InitMethod kaiming_uniform_init(double negative_slope = 0, Fan fan = Fan::kIn);

} // namespace tessera
