// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MocoModel` pretrains an image encoder by self-supervised contrastive
// learning: MoCo v3 (arXiv:2104.02057).

#include "tessera/engine/engine.h"
#include "tessera/zoo/layers/contrastive.h"
#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/layered_model.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::zoo {

struct MocoConfig {
  /// With fixed positions and a fixed patch projection, which stabilizes
  /// training.
  PatchEmbeddingOptions patches;
  std::vector<TransformerLayerOptions> layers;
  NormOptions norm; ///< after the layers
  int64_t head_inner = 4096; ///< hidden size of both heads
  int64_t head_features = 256; ///< output size of both heads
  double temperature = 0.2;
  double momentum = 0.99; ///< at the beginning of training
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// Two image encoders; the second is a moving average of the first. Modules
/// `embeddings`, `layers.N`, `norm`, `projection` and `prediction`
/// (ContrastiveHead), and in `momentum` the first four again, without gradients
/// and with the same initial values. A pipeline stage holds layer N of both
/// encoders.
///
/// Takes pixel_values and `second_pixel_values` [B, channels, height, width],
/// the two views. Returns the loss, summed over both directions; `queries` and
/// `keys` [2 B, head_features], last_hidden_state and hidden states of the
/// first encoder, with the rows of the first view before those of the second.
/// LayerState::memory is the second encoder's hidden states.
///
///     model.gather_over(&groups[ParallelGroup::kBatches]);
///     ... backward, engine.step() ...
///     update_momentum(engine, model, model.momentum_at(step, steps));
class MocoModel : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  MocoModel(
      const MocoConfig& config,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  /// Gathers over all ranks with batches of their own in training, and follows
  /// the first encoder after each step.
  std::unique_ptr<Head> head() override;

  /// From now on, queries are matched against the keys of all these ranks,
  /// which must have equal batch sizes, and batch norms use all their rows. By
  /// default each rank is alone.
  /// @param batches outlives the model; may be null.
  void gather_over(Communicator* batches) {
    batches_ = batches;
  }

  /// The momentum of the second encoder after step `step` of `steps`: from the
  /// configuration's momentum to 1 along half a cosine.
  double momentum_at(int64_t step, int64_t steps) const;

  /// second = momentum * second + (1 - momentum) * first; call it after each
  /// optimizer step.
  void update_momentum(double momentum);

  /// The trained parameters of the first encoder with those of the second that
  /// follow them, for each piece of the model.
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
  /// The modules that both encoders have.
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
  Communicator* batches_ = nullptr;
  Encoder encoder_, momentum_;
  ContrastiveHead prediction_{nullptr};
};

/// MocoModel::update_momentum() for a wrapped model, one piece at a time.
/// Collective.
void update_momentum(Engine& engine, const MocoModel& model, double momentum);

} // namespace tessera::zoo
