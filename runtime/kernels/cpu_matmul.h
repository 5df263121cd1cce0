// SPDX-License-Identifier: Apache-2.0
#pragma once
// `set_cpu_matmul()` selects what multiplies float32 matrices on the CPU.

namespace tessera {

/// What multiplies matrices. LibTorch calls MKL, which does not use
/// AVX-512 on processors other than Intel's. oneDNN, which LibTorch includes
/// too, does, and is 1.1 to 2.2 times as fast there (docs/measurements.md).
/// With operands rounded to bfloat16, which have 8 bits of mantissa, products
/// are several times as fast on processors with AVX512-BF16; tensors stay
/// float32.
enum class CpuMatmul {
  kLibTorch, ///< LibTorch's own choice, bit for bit
  kOneDnn, ///< oneDNN; sums in another order, equally accurate
  kAuto, ///< oneDNN if it uses more instructions than MKL on this processor
  kBfloat16, ///< operands rounded to bfloat16, sums in float32: a kernel of
             ///< ours
};

/// "libtorch", "onednn", "auto", "bfloat16".
const char* name_of(CpuMatmul choice);

/// From now on, at::mm, at::mm_out, at::addmm and addmm_ of dense float32 CPU
/// tensors use it, forward and backward, in the whole process; small matrices
/// and everything else stay with LibTorch. With kBfloat16, matrices of fewer
/// than 32 rows or columns are multiplied as with kAuto. Do not call it while
/// operators run.
/// @return what is in use: not kAuto.
/// @throws tessera::Error for kOneDnn if LibTorch was built without it, for
///   kBfloat16 on a processor without AVX512-BF16.
CpuMatmul set_cpu_matmul(CpuMatmul choice);

/// What is in use.
CpuMatmul cpu_matmul();

/// While it is alive, dry runs for the CPU count the memory that
/// products take with a choice, in place of what is in use.
class PlannedCpuMatmul {
 public:
  explicit PlannedCpuMatmul(CpuMatmul choice);
  ~PlannedCpuMatmul();
  PlannedCpuMatmul(const PlannedCpuMatmul&) = delete;
  PlannedCpuMatmul& operator=(const PlannedCpuMatmul&) = delete;
};

} // namespace tessera
