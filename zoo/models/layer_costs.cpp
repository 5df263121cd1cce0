// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/layer_costs.h"

namespace tessera::zoo {

namespace {

int64_t or_else(int64_t value, int64_t otherwise) {
  return value == 0 ? otherwise : value;
}

/// In double, because sizes from a damaged file, which is rejected later, may
/// overflow.
double weights(const AttentionOptions& attention) {
  const int64_t head =
      or_else(attention.head_features, attention.features / attention.heads);
  const int64_t kv_heads = or_else(attention.kv_heads, attention.heads);
  const int64_t memory = or_else(attention.memory_features, attention.features);
  return 2.0 * attention.features * attention.heads * head +
         2.0 * memory * kv_heads * head;
}

double weights(const FeedForwardOptions& feed_forward) {
  return (feed_forward.gated ? 3.0 : 2.0) * feed_forward.features *
         feed_forward.inner;
}

double weights(const ExpertsOptions& experts) {
  return 1.0 * experts.experts * experts.expert.features +
         experts.experts_per_token * weights(experts.expert) +
         (experts.shared ? weights(*experts.shared) : 0);
}

} // namespace

std::vector<pipeline::LayerCost> layer_costs(
    const std::vector<TransformerLayerOptions>& layers,
    int64_t end) {
  std::vector<pipeline::LayerCost> costs;
  for (const TransformerLayerOptions& layer : layers) {
    double used = weights(layer.attention);
    if (layer.cross_attention) {
      used += weights(*layer.cross_attention);
    }
    used +=
        layer.experts ? weights(*layer.experts) : weights(layer.feed_forward);
    costs.push_back({used});
  }
  if (!costs.empty()) {
    costs.back().time += static_cast<double>(end);
  }
  return costs;
}

} // namespace tessera::zoo
