// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of [Note: softmax loss] for the CPU, one for each instruction
// set.

#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/softmax_loss_rows.h"

#include <cstdint>

namespace tessera::runtime {

/// Rows [begin, end), independently of all others.
using SoftmaxLossKernel =
    void(const SoftmaxLossRows& all, int64_t begin, int64_t end);

SoftmaxLossKernel softmax_loss_portable;
SoftmaxLossKernel softmax_loss_avx2;
SoftmaxLossKernel softmax_loss_avx512;

/// @throws tessera::Error if `isa` is not available.
SoftmaxLossKernel* softmax_loss_kernel(Isa isa);

/// The halves of the loss for logits of some of the classes, softmax_part.h.
/// Targets of no class, negative, are of other parts; rows that are ignored
/// have `ignore_index`. With `label_smoothing` the weighted sums are computed.
struct SoftmaxPartKernels {
  /// @param sums [rows, 4].
  void (*sums)(
      const SoftmaxLossRows& all,
      float* sums,
      int64_t begin,
      int64_t end);
  /// @param factors [rows, 4].
  void (*gradient)(
      const SoftmaxLossRows& all,
      const float* factors,
      int64_t begin,
      int64_t end);
};

extern const SoftmaxPartKernels kSoftmaxPartPortable;
extern const SoftmaxPartKernels kSoftmaxPartAvx2;
extern const SoftmaxPartKernels kSoftmaxPartAvx512;

/// @throws tessera::Error if `isa` is not available.
const SoftmaxPartKernels& softmax_part_kernels(Isa isa);

} // namespace tessera::runtime
