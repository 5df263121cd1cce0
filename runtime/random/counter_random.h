// SPDX-License-Identifier: Apache-2.0
#pragma once
// `fill_uniform()` and `fill_normal()` draw random numbers that depend only on
// (seed, stream, element): a rank fills its slice of a tensor with the same
// numbers as in the whole tensor, for any number of ranks. Philox4x32-10
// (Salmon et al., SC 2011) and the Box-Muller transform; the numbers have
// float32 precision and the same bits on every processor.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace tessera {

/// A sequence of random numbers; element i does not depend on which elements
/// were drawn before.
struct RandomStream {
  uint64_t seed = 0;
  /// Number of the stream within the seed, e.g. stream_of(name of the
  /// parameter).
  uint64_t stream = 0;
};

/// Returns the stream number of a name: its 64-bit FNV-1a hash.
uint64_t stream_of(std::string_view name);

/// Fills `slice` with elements [first_element, first_element + numel) of the
/// stream, uniform in [low, high) up to rounding to the slice's dtype.
/// @param slice contiguous, floating point; a CUDA slice is filled through the
///   host.
/// @throws tessera::Error on another layout or dtype.
///
/// Blocks. Deterministic: the numbers do not depend on the number of threads.
void fill_uniform(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double low = 0,
    double high = 1);

/// As fill_uniform(), normally distributed; at most 6.7 standard deviations
/// from the mean.
void fill_normal(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double mean = 0,
    double std = 1);

} // namespace tessera
