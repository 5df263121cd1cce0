// SPDX-License-Identifier: Apache-2.0
#pragma once
// `libtorch_sqrt()` finds the square root function that at::sqrt uses.
//
// [Note: ATen's square root] ATen's CPU sqrt calls a vector math library if
// LibTorch was built with one; the PyPI wheel has Intel MKL's. This library
// takes different code paths on Intel's processors and on others. On an AMD
// EPYC (Zen 5) with LibTorch 2.11, 17 % of float32 roots differ from the
// correctly rounded one by one unit in the last place (error up to 0.75), as do
// 1 % of float64 roots. They depend on the value alone, not on position,
// alignment or ATEN_CPU_CAPABILITY. An update that must equal
// torch::optim::AdamW bit for bit therefore has to compute its roots with the
// same code, however slow that is; if that code turns out to round correctly,
// the processor's own instruction replaces it.

#include <cstdint>

namespace tessera {

/// A function with the same roots as ATen.
template <typename T>
struct LibTorchSqrt {
  /// Writes the roots of in[0, numel) to out. Null if ATen's roots are
  /// correctly rounded, so that any correctly rounded root will do.
  void (*compute)(int64_t numel, const T* in, T* out) = nullptr;
  /// Elements per call that make its fixed cost negligible.
  int64_t chunk_numel = 0;
};

/// Finds the function by comparing candidates with at::sqrt. The first call
/// takes milliseconds, or tenths of a second if every root must be checked;
/// later calls return the same object. T is float or double. Call it outside of
/// parallel regions.
template <typename T>
const LibTorchSqrt<T>& libtorch_sqrt();

namespace detail {

/// The fallback: at::sqrt itself.
template <typename T>
LibTorchSqrt<T> aten_sqrt();

} // namespace detail

} // namespace tessera
