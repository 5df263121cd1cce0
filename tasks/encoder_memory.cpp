// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/encoder_memory.h"

#include "tessera/zoo/layers/attention_function.h"

#include <algorithm>

namespace tessera::tasks {

namespace {

/// All layers are equal.
const zoo::TransformerLayerOptions& layer_of(const zoo::EncoderConfig& config) {
  return config.layers.front();
}

std::int64_t layer_count(const zoo::EncoderConfig& config) {
  return static_cast<std::int64_t>(config.layers.size());
}

/// The bytes that a layer saves per token: the inputs of its operators.
std::int64_t layer_bytes_per_token(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  const std::int64_t hidden = config.features;
  const std::int64_t element = shape.element_bytes;
  // The inputs of the layer and of its feed-forward half, and the result of
  // attention.
  std::int64_t bytes = 3 * hidden * element;
  // The inner features before and after the activation.
  bytes += 2 * layer_of(config).feed_forward.inner * element;
  // Twice: a dropout mask, of bytes in one pass with the LayerNorm, and its
  // input.
  bytes += 2 * hidden * (1 + shape.element_bytes);
  if (shape.has_fused_attention) {
    // Queries, keys, values; one number per head for the softmax.
    bytes += 3 * hidden * element + 4 * layer_of(config).attention.heads;
  } else {
    // Always in float32: query, key and value, and for each head and row the
    // probabilities before and after dropout, and the dropout mask.
    bytes += 3 * 4 * hidden;
    bytes += 3 * 4 * layer_of(config).attention.heads * shape.length;
  }
  return bytes;
}

/// Before the layers: the input of a LayerNorm, a dropout mask, ids and types,
/// and the input of a projection if there is one; after them: the last layer's
/// result.
std::int64_t outer_bytes_per_token(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  constexpr std::int64_t kIdsAndTypes = 2 * 8;
  const std::int64_t embedded = config.embedded();
  const std::int64_t projected = embedded == config.features ? 0 : embedded;
  return embedded * (shape.element_bytes + shape.dropout_bytes) +
         (projected + config.features) * shape.element_bytes + kIdsAndTypes;
}

/// Of all rows: the sines and cosines that rotate queries and keys. Backward
/// needs them, and not what they rotate.
std::int64_t rotation_bytes(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  return config.position_kind == zoo::EncoderPositions::kRotaryTable
             ? shape.length * shape.element_bytes *
                   (config.features / layer_of(config).attention.heads)
             : 0;
}

} // namespace

EncoderBatchShape::EncoderBatchShape(
    std::int64_t rows,
    std::int64_t length,
    c10::Device device,
    const PrecisionPolicy& precision)
    : rows(rows),
      length(length),
      element_bytes(static_cast<std::int64_t>(
          c10::elementSize(precision.parameters.value_or(c10::kFloat)))),
      // LibTorch's CPU multiplies by a mask of the activation's type.
      dropout_bytes(device.is_cpu() ? element_bytes : 1),
      has_fused_attention(zoo::keeps_no_weights(
          device,
          precision.parameters.value_or(c10::kFloat),
          length)) {}

std::int64_t encoder_activation_bytes(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t checkpointed_layers) {
  const std::int64_t layer = layer_bytes_per_token(config, shape);
  const std::int64_t again =
      std::clamp<std::int64_t>(checkpointed_layers, 0, layer_count(config));
  // Backward begins with the last layers. A recomputed layer is whole in
  // memory, too, but only after the last layers have been freed.
  const std::int64_t full = std::max<std::int64_t>(
      layer_count(config) - again, std::min<std::int64_t>(again, 1));
  const std::int64_t kept = outer_bytes_per_token(config, shape) +
                            full * layer +
                            again * config.features * shape.element_bytes;
  // Gradients of the widest activation; a rotation's backward has those of its
  // result, of four products of half the features, and of its input.
  std::int64_t widest = 2 * layer_of(config).feed_forward.inner;
  if (config.position_kind == zoo::EncoderPositions::kRotaryTable) {
    widest = std::max(widest, 4 * config.features);
  }
  const std::int64_t gradients = widest * shape.element_bytes;
  return shape.rows * shape.length * (kept + gradients) +
         rotation_bytes(config, shape);
}

std::optional<std::int64_t> fewest_recomputed_layers(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape,
    std::int64_t room_bytes) {
  for (std::int64_t layers = 0; layers <= layer_count(config); ++layers) {
    if (encoder_activation_bytes(config, shape, layers) <= room_bytes) {
      return layers;
    }
  }
  return std::nullopt;
}

} // namespace tessera::tasks
