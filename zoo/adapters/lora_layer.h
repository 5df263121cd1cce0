// SPDX-License-Identifier: Apache-2.0
#pragma once
// A linear layer's product of low rank.

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

/// scaling * B A x, of parameters `lora_A` [r, in] and `lora_B` [out, r]. Over
/// a tensor-parallel group they are divided as the layer's weight is:
///
/// | division | A         | B         | A x                   |
/// | kColumn  | whole     | [out/n, r]| whole on every rank   |
/// | kRow     | [r, in/n] | whole     | summed over the ranks |
/// | kData    | whole     | whole     | between layers        |
///
/// Where a checkpoint keeps several layers as one, these share its A: the first
/// of them owns it.
class LoraLayer : public LinearAdapter {
 public:
  /// Makes one and registers it in the layer. Its parameters have the dtype and
  /// device of the layer's weight, and are declared: init_parameters() says
  /// what they start from.
  /// @param first the layer that shares its A; null for one of one's own.
  static std::shared_ptr<LoraLayer> add(
      LinearLayer& layer,
      const LoraLayerOptions& options,
      const LoraLayer* first);

  /// Takes the adapter out of its layer.
  static void remove(LinearLayer& layer);

  /// Null where the layer has no adapter.
  static LoraLayer* of(const LinearLayer& layer);

  at::Tensor forward(const at::Tensor& x) override;

  /// What the adapter adds to the weight that this rank has: scaling * B A,
  /// in float32. Not collective; parameters have memory.
  at::Tensor product() const;

  double scaling() const {
    return options_.scaling;
  }
  /// Its parameters; A only where it owns it.
  virtual const torch::nn::Module& parameters() const = 0;

 protected:
  LoraLayer(const LinearLayer& layer, const LoraLayerOptions& options);

  virtual bool trains() const = 0;

  at::Tensor a_, b_;

 private:
  at::Tensor dropped(const at::Tensor& x) const;

  LinearDivision division_;
  LayerContext context_;
  LinearOptions linear_;
  LoraLayerOptions options_;
};

} // namespace tessera::zoo
