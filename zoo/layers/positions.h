// SPDX-License-Identifier: Apache-2.0
#pragma once
// Position encodings other than rotary: sinusoidal tables, ALiBi's slopes, T5's
// relative buckets.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

enum class SinusoidLayout {
  kSinesThenCosines, ///< [sin f0, sin f1, ..., cos f0, cos f1, ...]
  kPairs, ///< [sin f0, cos f0, sin f1, cos f1, ...] (arXiv:1706.03762)
};

/// float32 [positions, features]: sines and cosines of position * base^(-2i /
/// features), computed in float64. `features` must be even.
at::Tensor sinusoid_table(
    int64_t positions,
    int64_t features,
    SinusoidLayout layout,
    double base = 10000);

/// One slope per head (arXiv:2108.12409): a geometric sequence starting at
/// 2^(-8 / heads) if heads is a power of two; otherwise that of the next
/// smaller power, followed by every second one of the next larger.
std::vector<double> alibi_slopes(int64_t heads);

/// float32 [1, heads, 1, S]: slope * key position, which under a softmax is
/// equivalent to slope * (key - query).
at::Tensor alibi_bias(int64_t heads, int64_t length, const at::Device& device);

struct RelativeBuckets {
  int64_t buckets = 32;
  int64_t max_distance = 128;
  /// Keys after and before the query get half of the buckets each.
  bool bidirectional = true;
};

/// The bucket of key - query (arXiv:1910.10683): exact for small distances,
/// logarithmic up to max_distance. int64 [queries, keys].
/// @param first the position of the first query among the keys.
at::Tensor relative_buckets(
    int64_t queries,
    int64_t keys,
    const RelativeBuckets& options,
    const at::Device& device,
    int64_t first = 0);

} // namespace tessera::zoo
