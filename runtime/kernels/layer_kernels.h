// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LayerKernels` is the table of an accelerator's kernels for what layers
// compute between matrix products; `gated_cuda()`, `gated_backward_cuda()` and
// `rotate_cuda()` call them.

#include "tessera/runtime/kernels/kernel_trial.h"
#include "tessera/runtime/kernels/layer_arguments.h"

#include <vector>

namespace tessera::runtime {

/// All work on the current stream of the current device and do not synchronize.
struct LayerKernels {
  void (*gated)(const GatedRows& rows) = nullptr;
  void (*gated_backward)(const GatedRows& rows) = nullptr;
  void (*rotate)(const RotaryHeads& heads) = nullptr;
};

/// The plugin calls it when it is loaded.
void register_layer_kernels(const LayerKernels& kernels);

/// The same functions, composed of LibTorch's operators: in float32, with one
/// rounding at the end.
const LayerKernels& operator_layer_kernels();

// What is registered, or LibTorch's operators where the check finds it wrong
// ([Note: the check of CUDA kernels]). They throw tessera::Error when nothing
// is registered.

void gated_cuda(const GatedRows& rows);
void gated_backward_cuda(const GatedRows& rows);
void rotate_cuda(const RotaryHeads& heads);

/// Those of gated activations, then of rotary positions, for each type of
/// elements but float64.
std::vector<KernelTrial*> layer_kernel_trials();

} // namespace tessera::runtime
