// SPDX-License-Identifier: Apache-2.0
#pragma once
// The square root as at::sqrt computes it.
//
// [Note: ATen's square root]
// ATen's CPU sqrt goes through a vector math library where LibTorch was built
// with one; the PyPI wheel has Intel MKL's. On Intel's own processors and on
// others that library takes different code. On an AMD EPYC (Zen 5) with
// LibTorch 2.11, 17 % of float32 roots differ from the correctly rounded one,
// by one unit in the last place (error up to 0.75), and 1 % of float64 roots.
// They depend on the value alone, not on position, alignment or
// ATEN_CPU_CAPABILITY. An update that shall equal torch::optim::AdamW bit for
// bit must therefore take its roots from the same code, at whatever speed that
// has; where it turns out to round correctly, the processor's own instruction
// takes its place.

#include <cstdint>

namespace tessera {

/// A function with ATen's roots.
template <typename T>
struct LibTorchSqrt {
  /// Writes the roots of in[0, numel) to out. Null where ATen's roots are
  /// correctly rounded: then any correctly rounded root will do.
  void (*compute)(int64_t numel, const T* in, T* out) = nullptr;
  /// Elements a call should have, for its fixed cost not to matter.
  int64_t chunk_numel = 0;
};

/// Finds the function, by comparing candidates with at::sqrt. The first call
/// takes milliseconds, or tenths of a second where every root has to be looked
/// at; later ones return the same object. T is float or double. Call it outside
/// of parallel regions.
template <typename T>
const LibTorchSqrt<T>& libtorch_sqrt();

namespace detail {

/// The function of last resort: at::sqrt itself.
template <typename T>
LibTorchSqrt<T> aten_sqrt();

} // namespace detail

} // namespace tessera
