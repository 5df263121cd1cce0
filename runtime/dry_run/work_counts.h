// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OperatorWork` and `CollectiveWork` count what a dry run computes and sends.

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// What limits the bytes of an operator.
enum class WorkPlace {
  kDevice, ///< the device's memory
  kHost, ///< memory of the host, where the CPUs compute
  kToHost, ///< a copy from the device to the host
  kToDevice, ///< a copy from the host to the device
};

/// What an operator did in a dry run, over all of its calls in a module.
struct OperatorWork {
  std::string module; ///< whose parameter was used last
  std::string name; ///< e.g. "aten::addmm"
  bool in_backward = false; ///< also where backward recomputes a forward
  int64_t calls = 0;
  /// Two for each multiplication and addition of matrix products, convolutions
  /// and attention; 0 for other operators.
  double flops = 0;
  /// Read and written, each element once; see operator_bytes(). Of a copy
  /// between host and device: what is copied.
  double bytes = 0;
  /// Of `flops`: what is computed again, in checkpointed blocks and in the
  /// backward of fused attention. A model's FLOPs are without it.
  double repeated_flops = 0;
  /// Of `flops`: scores that a causal mask hides, which fused kernels skip.
  double masked_flops = 0;
  /// Of the first floating-point argument.
  c10::ScalarType dtype = c10::ScalarType::Float;
  WorkPlace place = WorkPlace::kDevice;
};

/// One call of an operator or a kernel.
struct WorkCall {
  size_t row = 0; ///< in those of operators, or of kernels
  bool is_kernel = false;
};

/// The collectives of one kind that a rank has called in a communicator.
struct CollectiveWork {
  std::string communicator; ///< e.g. "all-gathers"
  std::string kind; ///< "all_gather", "reduce_scatter", "all_reduce", ...
  int ranks = 0; ///< of the communicator
  int64_t calls = 0;
  /// Of the whole tensor: the output of an all-gather, the input of others.
  double bytes = 0;
  std::vector<int> members; ///< ranks in the job; empty: neighbors
};

} // namespace tessera
