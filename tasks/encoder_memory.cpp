// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/encoder_memory.h"

#include "tessera/runtime/kernels/pattern_attention.h"
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

/// Of what a layer saves per token: the inner features before and after the
/// activation, the input, and a dropout mask with its input.
std::int64_t feed_forward_bytes_per_token(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  const std::int64_t element = shape.element_bytes;
  return 2 * layer_of(config).feed_forward.inner * element +
         config.features * (1 + 2 * element);
}

/// The bytes that a layer saves per token: the inputs of its operators.
std::int64_t layer_bytes_per_token(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  const std::int64_t hidden = config.features;
  const std::int64_t element = shape.element_bytes;
  // The input of the layer, and the result of attention.
  std::int64_t bytes = 2 * hidden * element;
  bytes += feed_forward_bytes_per_token(config, shape);
  // A dropout mask, of bytes in one pass with the LayerNorm, and its input.
  bytes += hidden * (1 + element);
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

std::int64_t workspace_bytes(
    const zoo::EncoderConfig& config,
    const EncoderBatchShape& shape) {
  if (!shape.is_on_cpu || !shape.has_fused_attention) {
    return 0;
  }
  const std::int64_t heads = layer_of(config).attention.heads;
  const std::int64_t features = config.features / heads;
  return runtime::pattern_attention_workspace(
      shape.rows * heads, shape.length, features, features);
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
      is_on_cpu(device.is_cpu()),
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
  const std::int64_t tokens = shape.rows * shape.length;
  // Those of attention's result, queries, keys, values and of the input beside
  // attention, when what the layer's feed-forward half had saved is gone.
  const std::int64_t of_attention =
      tokens * (5 * config.features * shape.element_bytes -
                feed_forward_bytes_per_token(config, shape)) +
      workspace_bytes(config, shape);
  const std::int64_t gradients =
      std::max(tokens * widest * shape.element_bytes, of_attention);
  return tokens * kept + gradients + rotation_bytes(config, shape);
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
