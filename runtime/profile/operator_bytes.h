// SPDX-License-Identifier: Apache-2.0
#pragma once
// `operator_bytes()` says how many bytes an operator moves between a device and
// its memory.
//
// [Note: bytes of operators] Each operator reads its inputs once and writes its
// outputs once; between operators nothing stays in a cache. An expanded tensor
// counts as what it expands, a tensor that is given twice once, views and
// allocations nothing, and an operator in place what it changes twice: read and
// written. Some operators differ, as LibTorch's kernels for CUDA show:
//   lookups and their backwards, losses by index
//       read or write the rows that are named, not the table
//   backward of fused attention
//       reads the output and its gradient a second time, for the sums of their
//       rows, and adds up the gradient of queries in float32 in memory: it is
//       zeroed, read and written by the sums, and read
//   backward of norms
//       has one pass for the gradient of the input and one for those of the
//       parameters, each of which reads input and gradient
// Products count each matrix once, which caches make true of large ones only.

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

namespace tessera::runtime {

/// The bytes of a tensor's elements in memory, those of expanded dimensions
/// once.
double bytes_in_memory(const at::Tensor& tensor);

/// The bytes of a call, as far as its arguments and results are known.
struct CallBytes {
  double read = 0; ///< of all arguments that it reads
  double written = 0; ///< of all that it writes
  double made = 0; ///< of new results, which it writes as well
};

/// Read and written by a call.
/// @param name e.g. "aten::addmm".
/// @param arguments bytes_in_memory() of each argument in the order of the
///   operator's schema; 0 where it is no tensor.
double operator_bytes(
    std::string_view name,
    std::span<const double> arguments,
    const CallBytes& call);

} // namespace tessera::runtime
