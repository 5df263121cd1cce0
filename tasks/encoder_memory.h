// SPDX-License-Identifier: Apache-2.0
#pragma once
// encoder_activation_bytes() estimates the activation memory of training an
// encoder.

#include "tessera/sharding/groups/precision.h"
#include "tessera/zoo/models/encoder.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera::tasks {

/// The micro-batch of one rank, with the device and data types of its
/// computation.
struct EncoderBatchShape {
  EncoderBatchShape(
      std::int64_t rows,
      std::int64_t length,
      c10::Device device,
      const PrecisionPolicy& precision);

  std::int64_t rows;
  std::int64_t length; ///< of the longest sequence, in tokens
  std::int64_t element_bytes; ///< of activations
  std::int64_t dropout_bytes; ///< per element of a dropout mask
  bool is_on_cpu;
  /// Attention saves no [length, length] matrices: zoo::keeps_no_weights().
  bool has_fused_attention;
};

/// Bytes of activations that a BERT-like encoder, in training mode with
/// dropout, holds at the end of a forward whose first `checkpointed_layers`
/// layers are recomputed in backward, plus what the backward of one layer
/// needs. Within 10 % of measurements on the CPU; library workspaces are not
/// included.
std::int64_t encoder_activation_bytes(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t checkpointed_layers);

/// The smallest number of layers to recompute so that activations take at most
/// `room_bytes`; nullopt if no number suffices. Memory is lowest with all but
/// one layer recomputed, because the last layer is whole when backward begins.
std::optional<std::int64_t> fewest_recomputed_layers(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t room_bytes);

} // namespace tessera::tasks
