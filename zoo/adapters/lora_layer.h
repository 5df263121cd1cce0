// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraLayer` is the low-rank product that LoRA adds to a linear layer.

#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/layers/linear.h"

#include <memory>

namespace tessera::zoo {

struct LoraLayerOptions {
  int64_t r = 8;
  double scaling = 1;
  double dropout = 0;
  LoraInit init = LoraInit::kDefault;
};

/// scaling * B A x, with parameters `lora_A` [r, in] and `lora_B` [out, r].
/// Over a tensor-parallel group they are partitioned as the layer's weight is:
///
/// | division | A         | B         |
/// | kColumn  | whole     | [out/n, r]|
/// | kRow     | [r, in/n] | whole     |
/// | kNone    | whole     | whole     |
///
/// Layers that a checkpoint stores as one tensor share one A, which the first
/// of them owns.
class LoraLayer : public DistributedModule, public LinearAdapter {
 public:
  LoraLayer(
      const LinearLayer& layer,
      const LoraLayerOptions& options,
      const LoraLayer* first);

  /// Creates an adapter and registers it in the layer. Its parameters have the
  /// dtype and device of the layer's weight, and are declared:
  /// init_parameters() sets their initial values.
  /// @param first the layer whose A is shared; null to create a new one.
  static std::shared_ptr<LoraLayer> add(
      LinearLayer& layer,
      const LoraLayerOptions& options,
      const LoraLayer* first);

  /// Removes the adapter from its layer.
  static void remove(LinearLayer& layer);

  /// The adapter of a layer; null if it has none.
  static LoraLayer* of(const LinearLayer& layer);

  at::Tensor forward(const at::Tensor& x) override;
  bool is_active() const override {
    return is_active_;
  }
  void set_active(bool active) {
    is_active_ = active;
  }

  /// The adapter's contribution to this rank's part of the weight: scaling * B
  /// A, in float32. Not collective; parameters must have memory.
  at::Tensor product() const;

  double scaling() const {
    return options_.scaling;
  }

 private:
  LayerContext context_;
  LoraLayerOptions options_;
  at::Tensor a_, b_;
  bool is_active_ = true;
};

} // namespace tessera::zoo
