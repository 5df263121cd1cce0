// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which library multiplies float32 matrices on the CPU.

namespace tessera {

/// LibTorch calls MKL, which leaves AVX-512 unused on processors that are not
/// Intel's; oneDNN, which LibTorch has on board too, uses it there: about twice
/// as fast.
enum class CpuMatmul {
  kLibTorch, ///< LibTorch's own choice, bit for bit
  kOneDnn, ///< oneDNN; sums in another order, as accurate
  kAuto, ///< oneDNN where it has more instructions than MKL, by this processor
};

/// "libtorch", "onednn", "auto".
const char* name_of(CpuMatmul choice);

/// From here on at::mm, at::mm_out, at::addmm and addmm_, forward and backward,
/// of dense float32 CPU tensors go through it, in the whole process; small ones
/// and all others stay with LibTorch. Not to be called while operators run.
/// @return what is in use: kLibTorch or kOneDnn.
/// @throws tessera::Error for kOneDnn where LibTorch was built without it.
CpuMatmul set_cpu_matmul(CpuMatmul choice);

/// What is in use.
CpuMatmul cpu_matmul();

} // namespace tessera
