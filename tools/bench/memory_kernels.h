// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory-bound loops for bandwidth measurements. Arrays have `count` elements
// and do not overlap.

#include <cstddef>
#include <cstdint>

namespace tessera::tools {

/// @return a sum that depends on every element.
uint64_t read_memory(const float* a, size_t count);

void write_memory(float* a, float value, size_t count);

/// a = b + 3 c.
void triad_memory(float* a, const float* b, const float* c, size_t count);

/// The access pattern of an optimizer: reads four arrays and writes three of
/// them, 28 bytes per element.
void update_memory(float* w, float* m, float* v, const float* g, size_t count);

} // namespace tessera::tools
