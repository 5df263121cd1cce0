// SPDX-License-Identifier: Apache-2.0
#pragma once
// `is_out_of_memory()` recognizes LibTorch's errors of failed allocations.

#include <c10/util/Exception.h>

namespace tessera::runtime {

/// Whether memory of a device or of the host ran out. LibTorch's allocator for
/// the CPU throws no c10::OutOfMemoryError, as those of devices do, but an
/// Error of TORCH_CHECK, which is recognized by its text.
bool is_out_of_memory(const c10::Error& error);

/// What lowers the memory of a training run, for messages: one sentence that
/// names configuration keys.
inline constexpr const char* kMemoryRemedy =
    "Lower training.batch_size or model.max_length, recompute layers (model.checkpoint_layers), use more ranks, or offload (memory.host_bytes, memory.nvme_path, placement.activations); see docs/troubleshooting.md.";

} // namespace tessera::runtime
