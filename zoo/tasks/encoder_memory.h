// SPDX-License-Identifier: Apache-2.0
#pragma once
// What training an encoder keeps between forward and backward, told beforehand.

#include "tessera/sharding/precision.h"
#include "tessera/zoo/models/encoder.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// A micro-batch of one rank, and where and in which types it is computed.
struct EncoderBatchShape {
  EncoderBatchShape(
      std::int64_t rows,
      std::int64_t length,
      c10::Device device,
      const PrecisionPolicy& precision);

  std::int64_t rows;
  std::int64_t length; ///< tokens of the longest row
  std::int64_t element_bytes; ///< of activations
  std::int64_t norm_bytes; ///< of what a LayerNorm keeps
  std::int64_t dropout_bytes; ///< of an element of a dropout mask
  /// The attention keeps no [length, length] matrices: on CUDA.
  bool has_fused_attention;
};

/// Bytes that a BERT or its like, in training mode with dropout, keeps at the
/// end of a forward whose first `checkpointed_layers` layers are computed again
/// in backward, and what the backward of one layer takes beside them. Within a
/// tenth of what is measured on the CPU; libraries' workspaces are not in it.
std::int64_t encoder_activation_bytes(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t checkpointed_layers);

/// The fewest layers to compute again so that activations take at most
/// `room_bytes`; nothing when no number of layers does. All but one layer is
/// the least: the last one is whole when backward begins.
std::optional<std::int64_t> fewest_recomputed_layers(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t room_bytes);

} // namespace tessera::zoo
