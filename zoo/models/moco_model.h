// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pre-training without labels by comparing two views of each image: MoCo v3
// (arXiv:2104.02057).

#include "tessera/engine/engine.h"
#include "tessera/zoo/layers/contrastive.h"
#include "tessera/zoo/models/image_encoder.h"

#include <utility>
#include <vector>

namespace tessera::zoo {

struct MocoConfig {
  /// With fixed positions and a fixed projection of patches, which keeps the
  /// training stable.
  PatchEmbeddingOptions patches;
  std::vector<TransformerLayerOptions> layers;
  NormOptions norm; ///< behind the layers
  int64_t head_inner = 4096; ///< features inside of both heads
  int64_t head_features = 256; ///< of queries and keys
  double temperature = 0.2;
  double momentum = 0.99; ///< at the beginning of the training
  double deviation = 0.02; ///< of fresh weights
};

/// Two encoders of images, of which the second follows the first. Modules
/// `embeddings`, `layers.N`, `norm`, `projection` and `prediction`
/// (ContrastiveHead), and in `momentum` the first four once more, without
/// gradients and at first with the same values. A stage's layer N is that of
/// both encoders.
///
/// Takes pixel_values and `second_pixel_values` [B, channels, height, width],
/// the two views. Results are the loss, which is the sum of both directions',
/// and with the two views' rows one after the other `queries` and `keys`
/// [2 B, head_features], last_hidden_state and hidden states of the first
/// encoder. LayerState::memory is the second encoder's hidden states.
///
///     model.gather_over(&groups[ParallelGroup::kBatches]);
///     ... backward, engine.step() ...
///     update_momentum(engine, model, model.momentum_at(step, steps));
class MocoModel : public Model {
 public:
  /// @param json config.json, kept.
  MocoModel(
      const MocoConfig& config,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  /// From here on queries find their keys among those of all these ranks, which
  /// have batches of one size, and batch norms see all their rows. By default
  /// each rank is alone. @param batches outlives the model; may be null.
  void gather_over(Communicator* batches) {
    batches_ = batches;
  }

  /// What the second encoder keeps of itself behind step `step` of `steps`,
  /// from the configuration's momentum to 1 by half a cosine.
  double momentum_at(int64_t step, int64_t steps) const;

  /// momentum * second + (1 - momentum) * first, to be called behind each
  /// optimizer step.
  void update_momentum(double momentum);

  /// Parameters of the first encoder that learn, and the second's that follow
  /// them, piece by piece.
  using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>;
  std::vector<Pairs> pairs() const;

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  /// What the encoders have both.
  struct Encoder {
    PatchEmbedding embeddings{nullptr};
    TransformerLayers layers{nullptr};
    Norm norm{nullptr};
    ContrastiveHead projection{nullptr};
  };

  Encoder make_encoder(torch::nn::Module& owner);
  at::Tensor embed(Encoder& encoder, const ModelInput& input);
  at::Tensor projected(Encoder& encoder, const at::Tensor& normed);

  MocoConfig moco_;
  LayerContext context_;
  Communicator* batches_ = nullptr;
  Encoder encoder_, momentum_;
  ContrastiveHead prediction_{nullptr};
};

/// MocoModel::update_momentum() of a wrapped model, one piece of it at a time.
/// Collective.
void update_momentum(Engine& engine, const MocoModel& model, double momentum);

} // namespace tessera::zoo
