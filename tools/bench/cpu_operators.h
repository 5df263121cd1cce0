// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_cpu_operators()` measures what LibTorch's operators reach on the
// CPU.

#include <optional>

namespace tessera::tools {

/// Of this process, with its threads.
struct CpuOperatorRates {
  int threads = 0;
  double products_32bit = 0; ///< operations/s, float32
  double products_16bit = 0; ///< bfloat16
  /// float32 with factors rounded to bfloat16 (CpuMatmul::kBfloat16); nothing
  /// on processors without AVX512-BF16.
  std::optional<double> products_rounded;
  double attention_16bit = 0; ///< fused, causal, bfloat16
  /// Bytes/s, read and written, of operators in float32 that are no products,
  /// as many bytes of each kind as training moves: sums and products of
  /// elements, copies, softmax, norms and activation functions. On a CPU
  /// arithmetic bounds many of them, not memory.
  double elementwise = 0;
};

/// Matrices and activations of a layer of 768 features and 1024 tokens. Blocks
/// for about `seconds`; changes no results of the process.
CpuOperatorRates measure_cpu_operators(double seconds);

} // namespace tessera::tools
