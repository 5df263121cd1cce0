// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers that are a function of (seed, stream, element) alone: a rank
// fills its slice of a tensor with the numbers that the whole would have there,
// however many ranks there are. Philox4x32-10 (Salmon et al., SC 2011) and the
// Box-Muller transform; the numbers have float32 precision and the same bits on
// every processor.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace tessera {

/// A sequence of numbers; element i of it never depends on what was read
/// before.
struct RandomStream {
  uint64_t seed = 0;
  /// Which of the seed's streams, e.g. stream_of(name of the parameter).
  uint64_t stream = 0;
};

/// A stream number for a name: its 64-bit FNV-1a hash.
uint64_t stream_of(std::string_view name);

/// Fills `slice` with elements [first_element, first_element + numel) of the
/// stream, uniform in [low, high) up to rounding to the slice's dtype.
/// @param slice contiguous, floating point; a CUDA slice is filled through the
///   host.
/// Blocks. Deterministic: numbers do not depend on the number of threads.
/// @throws tessera::Error on another layout or dtype.
void fill_uniform(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double low = 0,
    double high = 1);

/// As fill_uniform(), normally distributed; no further than 6.7 standard
/// deviations from the mean.
void fill_normal(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double mean = 0,
    double std = 1);

} // namespace tessera
