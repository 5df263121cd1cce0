// SPDX-License-Identifier: Apache-2.0
#pragma once
// Autoencoders that see a part of the patches and paint the others: MAE
// (arXiv:2111.06377).

#include "tessera/zoo/models/image_encoder.h"

#include <vector>

namespace tessera::zoo {

struct MaskedAutoencoderConfig {
  PatchEmbeddingOptions patches; ///< with a class token and fixed positions
  std::vector<TransformerLayerOptions> encoder;
  NormOptions norm; ///< behind the encoder
  double mask_ratio = 0.75; ///< of patches that the encoder does not see
  /// None for the encoder alone.
  std::vector<TransformerLayerOptions> decoder;
  /// The loss is of pixels less their patch's mean, over its deviation.
  bool normalised_pixels = false;
  double deviation = 0.02; ///< of fresh weights

  /// How many of so many patches the encoder sees.
  int64_t seen_patches(int64_t patches) const;
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` and `norm` of the
/// encoder, and `decoder`: `embedding`, `mask_token`, `positions`, `layers.N`,
/// `norm`, `prediction`. The encoder's layers count first.
///
/// Takes pixel_values, `interpolate_pos_encoding` and `noise` [B, patches], by
/// which patches are ordered: those with the least are seen. Without noise it
/// is drawn. Results are `mask` [B, patches], 1 where a patch was not seen, and
/// `ids_restore` [B, patches], int64; of the encoder alone last_hidden_state of
/// the class token and the patches it saw, in the order of their noise;
/// otherwise logits [B, patches, channels of its pixels], row by row with the
/// colours innermost, and the loss. Hidden states are the encoder's.
/// LayerState::memory is the noise.
class MaskedAutoencoder : public Model {
 public:
  /// @param json config.json, kept.
  /// @throws tessera::Error where tensor-parallel ranks are to divide the
  ///     tokens between layers and cannot.
  MaskedAutoencoder(
      const MaskedAutoencoderConfig& config,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

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
  /// Of both halves, for images of so many patches; see check_divides_tokens().
  void check_divides(int64_t patches) const;
  void make_decoder(const std::vector<int>& own);
  void embed(const ModelInput& input, LayerState& state);
  void start_decoder(const ModelInput& input, LayerState& state);
  at::Tensor decoder_positions(int64_t patches) const;
  at::Tensor loss(
      const at::Tensor& pixels,
      const at::Tensor& logits,
      const at::Tensor& mask) const;

  MaskedAutoencoderConfig config_;
  LayerContext context_;
  int encoder_layers_;
  PatchEmbedding embeddings_{nullptr};
  TransformerLayers layers_{nullptr}, decoder_layers_{nullptr};
  Norm norm_{nullptr}, decoder_norm_{nullptr};
  Linear decoder_embedding_, prediction_;
  at::Tensor mask_token_, positions_; ///< the decoder's
};

} // namespace tessera::zoo
