// SPDX-License-Identifier: Apache-2.0
#pragma once
// `set_cpu_matmul()` selects the library that multiplies float32 matrices on
// the CPU.

namespace tessera {

/// Libraries for matrix products. LibTorch calls MKL, which does not use
/// AVX-512 on processors other than Intel's. oneDNN, which LibTorch includes
/// too, does, and is 1.1 to 2.2 times as fast there (docs/measurements.md).
enum class CpuMatmul {
  kLibTorch, ///< LibTorch's own choice, bit for bit
  kOneDnn, ///< oneDNN; sums in another order, equally accurate
  kAuto, ///< oneDNN if it uses more instructions than MKL on this processor
};

/// "libtorch", "onednn", "auto".
const char* name_of(CpuMatmul choice);

/// From now on, at::mm, at::mm_out, at::addmm and addmm_ of dense float32 CPU
/// tensors use this library, forward and backward, in the whole process; small
/// matrices and everything else stay with LibTorch. Do not call it while
/// operators run.
/// @return the library in use: kLibTorch or kOneDnn.
/// @throws tessera::Error for kOneDnn if LibTorch was built without it.
CpuMatmul set_cpu_matmul(CpuMatmul choice);

/// The library in use.
CpuMatmul cpu_matmul();

} // namespace tessera
