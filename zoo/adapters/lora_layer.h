// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraLayer` is the low-rank product that LoRA adds to a linear layer.

#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/layers/linear.h"

#include <functional>
#include <memory>

namespace tessera::zoo {

struct LoraLayerOptions {
  int64_t r = 8;
  double scaling = 1;
  double dropout = 0;
  LoraInit init = LoraInit::kDefault;
  bool use_dora = false;
  /// With LoraInit::kPissa: the values of A [r, in] and B [out, r], of this
  /// layer; see PrincipalPart.
  at::Tensor initial_a = {};
  at::Tensor initial_b = {};
};

/// W x + b + scaling * B A x, with parameters `lora_A` [r, in] and `lora_B`
/// [out, r]. With use_dora (arXiv:2402.09353) also `lora_magnitude` [out], m:
/// m / |V| V x + b, where V = W + scaling * B A and |V| are the lengths of its
/// rows, to which no gradient flows. They are computed in float32 from W A^T
/// and A A^T, without V.
///
/// Over a tensor-parallel group parameters are partitioned as the layer's
/// weight is:
///
/// | division | A         | B         | magnitude |
/// | kColumn  | whole     | [out/n, r]| [out/n]   |
/// | kRow     | [r, in/n] | whole     | whole     |
/// | kNone    | whole     | whole     | whole     |
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
  /// init_parameters() sets their initial values. The weight loses
  /// LoraLayerOptions::initial_b times initial_a, scaled. Magnitudes start as
  /// the lengths of the rows that the weight has now or will get; of a
  /// row-parallel layer they are computed here, from the whole weight:
  /// collective over its group.
  /// @param first the layer whose A is shared; null to create a new one.
  static std::shared_ptr<LoraLayer> add(
      LinearLayer& layer,
      const LoraLayerOptions& options,
      const LoraLayer* first);

  /// Removes the adapter from its layer.
  /// @param restores adds to the weight what PiSSA took from it.
  static void remove(LinearLayer& layer, bool restores);

  /// The adapter of a layer; null if it has none.
  static LoraLayer* of(const LinearLayer& layer);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& product) override;
  bool is_active() const override {
    return is_active_;
  }
  void set_active(bool active) {
    is_active_ = active;
  }

  /// This rank's part of the weight with the adapter in it, in float32.
  /// Collective over the group of a row-parallel layer with magnitudes;
  /// parameters must have memory.
  at::Tensor merged() const;

  double scaling() const {
    return options_.scaling;
  }

 private:
  /// Adds a multiple of what PiSSA takes from the weight to it.
  void change_weight(double factor) const;
  /// |V|^2 of this rank's rows, [out] in float32. Collective over the group of
  /// a row-parallel layer.
  at::Tensor squares() const;
  void sum_over_ranks(const at::Tensor& squares) const;
  /// m / |V| - 1, [out], divided as the layer's result.
  at::Tensor row_changes() const;

  LayerContext context_;
  LoraLayerOptions options_;
  at::Tensor a_, b_;
  at::Tensor weight_, bias_; ///< of the layer; bias_ may be undefined
  at::Tensor magnitude_; ///< undefined without use_dora
  bool is_active_ = true;
};

/// The weight that an adapter makes of W, as LoraLayer, in float32.
/// @param weight [out, in].
/// @param update [out, in], scaling * B A.
/// @param magnitude [out]; undefined without use_dora.
/// @param sum_over_ranks sums in place, over ranks that have other columns, the
///     squares of rows [out]; empty: there are no such ranks.
at::Tensor merged_weight(
    const at::Tensor& weight,
    const at::Tensor& update,
    const at::Tensor& magnitude,
    const std::function<void(const at::Tensor& squares)>& sum_over_ranks = {});

} // namespace tessera::zoo
