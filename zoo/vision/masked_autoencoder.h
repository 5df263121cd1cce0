// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MaskedAutoencoder` encodes some of an image's patches and reconstructs the
// others: MAE (arXiv:2111.06377).

#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/layered_model.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::zoo {

struct MaskedAutoencoderConfig {
  PatchEmbeddingOptions patches; ///< with a class token and fixed positions
  std::vector<TransformerLayerOptions> encoder;
  NormOptions norm; ///< after the encoder
  /// fraction of patches that the encoder does not see
  double mask_ratio = 0.75;
  /// Empty: the encoder alone.
  std::vector<TransformerLayerOptions> decoder;
  /// The loss uses pixels normalized by the mean and standard deviation of
  /// their patch.
  bool normalised_pixels = false;
  double deviation = 0.02; ///< standard deviation of initial weights

  /// How many of `patches` patches the encoder sees.
  int64_t seen_patches(int64_t patches) const;
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` and `norm` of the
/// encoder, and `decoder`: `embedding`, `mask_token`, `positions`, `layers.N`,
/// `norm`, `prediction`. The encoder's layers are numbered first.
///
/// Takes pixel_values, `interpolate_pos_encoding` and `noise` [B, patches]; the
/// patches with the smallest noise are seen. By default the noise is drawn.
/// Returns `mask` [B, patches], 1 where a patch was not seen, and `ids_restore`
/// [B, patches], int64; the encoder alone returns last_hidden_state of the
/// class token and the seen patches, ordered by noise; otherwise logits [B,
/// patches, values per patch], row by row with the channels innermost, and the
/// loss. Hidden states are the encoder's. LayerState::memory is the noise.
class MaskedAutoencoder : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  /// @throws tessera::Error if the number of tokens is not divisible over the
  ///     tensor-parallel ranks, under sequence parallelism.
  MaskedAutoencoder(
      const MaskedAutoencoderConfig& config,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  std::unique_ptr<Head> head() override;

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  bool has_decoder() const;
  /// check_divides_tokens() of both halves, for images of `patches` patches.
  void check_divides(int64_t patches) const;
  void make_decoder(const std::vector<int>& numbers);
  void embed(const ModelInput& input, LayerState& state);
  void start_decoder(const ModelInput& input, LayerState& state);
  at::Tensor decoder_positions(int64_t patches) const;
  at::Tensor loss(
      const at::Tensor& pixels,
      const at::Tensor& logits,
      const at::Tensor& mask) const;

  MaskedAutoencoderConfig config_;
  int encoder_layers_;
  PatchEmbedding embeddings_{nullptr};
  TransformerLayers layers_{nullptr}, decoder_layers_{nullptr};
  Norm norm_{nullptr}, decoder_norm_{nullptr};
  Linear decoder_embedding_, prediction_;
  at::Tensor mask_token_, positions_; ///< of the decoder
};

} // namespace tessera::zoo
