// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OperatorWork` and `CollectiveWork` count what a dry run computes and sends.

#include <cstdint>
#include <string>

namespace tessera {

/// What an operator did in a dry run, over all of its calls in a module.
struct OperatorWork {
  std::string module; ///< whose parameter was used last
  std::string name; ///< e.g. "aten::addmm"
  bool in_backward = false; ///< also where backward recomputes a forward
  int64_t calls = 0;
  /// Two for each multiplication and addition of matrix products, convolutions
  /// and attention; 0 for other operators.
  double flops = 0;
  double bytes = 0; ///< of its tensors, read or written
};

/// The collectives of one kind that a rank has called in a communicator.
struct CollectiveWork {
  std::string communicator; ///< e.g. "all-gathers"
  std::string kind; ///< "all_gather", "reduce_scatter", "all_reduce", ...
  int ranks = 0; ///< of the communicator
  int64_t calls = 0;
  /// Of the whole tensor: the output of an all-gather, the input of others.
  double bytes = 0;
};

} // namespace tessera
