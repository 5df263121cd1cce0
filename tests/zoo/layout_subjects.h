// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that are trained under every layout of ranks, and on what.

#include "tessera/zoo/models/model.h"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

struct Subject {
  const char* name;
  const char* architecture;
  const char* config; ///< JSON
  bool is_classifier = false;
  bool has_experts = false; ///< that ranks divide
  bool has_adapters = false; ///< LoRA's, which alone are trained
  bool takes_sequence = true; ///< tensor-parallel ranks can divide them
  bool takes_context = true; ///< context-parallel ranks can
  bool takes_ring = true; ///< they can do so by ring attention
  std::vector<int64_t> image = {}; ///< height, width; none for texts
  bool has_views = false; ///< of each image two
  int64_t segments = 0; ///< of texts, above 0 with a context and spans
  /// Not where batch norms of a few rows, or routers, make much of roundings.
  bool takes_lower_precision = true;
  /// Of initial weights there: such that softmax is nowhere so steep that it
  /// makes much of a rounding. Norms of queries and keys make it steeper.
  double lower_precision_range = 0.1;
  bool takes_recomputation = true; ///< routers' losses need what layers kept
  bool drops = false; ///< steps leave out layers, and tokens of layers
};

// Uneven: 5 layers, vocabularies of a prime number of words, 6 heads of 2.
inline const Subject kSubjects[] = {
    {.name = "gpt",
     .architecture = "GPT2LMHeadModel",
     .config = R"({"model_type": "gpt2", "vocab_size": 31, "n_embd": 12,
         "n_layer": 5, "n_head": 6, "n_positions": 16, "resid_pdrop": 0.2,
         "embd_pdrop": 0.2, "attn_pdrop": 0.2})"},
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .config = R"({"model_type": "llama", "vocab_size": 29, "hidden_size": 16,
         "intermediate_size": 20, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": 16, "attention_dropout": 0.2})"},
    // Norms of all heads, which ranks divide; windows and two kinds of
    // rotations.
    {.name = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .config = R"({"model_type": "olmo3", "vocab_size": 29, "hidden_size": 16,
         "intermediate_size": 20, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": 16, "sliding_window": 3,
         "pad_token_id": 0, "attention_dropout": 0.2})",
     .takes_ring = false,
     .lower_precision_range = 0.03},
    {.name = "bert",
     .architecture = "BertForMaskedLM",
     .config = R"({"model_type": "bert", "vocab_size": 37, "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 5,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})"},
    // Every stage has its table of rotations.
    {.name = "roformer",
     .architecture = "RoFormerForMaskedLM",
     .config = R"({"model_type": "roformer", "vocab_size": 37,
         "embedding_size": 8, "hidden_size": 12, "intermediate_size": 18,
         "num_hidden_layers": 5, "num_attention_heads": 6,
         "max_position_embeddings": 16, "rotary_value": true,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})"},
    {.name = "t5_v1_1",
     .architecture = "T5ForConditionalGeneration",
     .config = R"({"model_type": "t5", "vocab_size": 31, "d_model": 12,
         "d_kv": 2, "d_ff": 18, "num_layers": 2, "num_decoder_layers": 3,
         "num_heads": 6, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.2,
         "decoder_start_token_id": 0, "pad_token_id": 0,
         "tie_word_embeddings": true})",
     .takes_ring = false},
    {.name = "bert_classifier",
     .architecture = "BertForSequenceClassification",
     .config = R"({"model_type": "bert", "vocab_size": 37, "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 4,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})",
     .is_classifier = true},
    {.name = "longformer_classifier",
     .architecture = "LongformerForSequenceClassification",
     .config = R"({"model_type": "longformer", "vocab_size": 37,
         "hidden_size": 12, "intermediate_size": 18, "num_hidden_layers": 4,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "attention_window": 4, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     .is_classifier = true,
     .takes_context = false},
    {.name = "t5",
     .architecture = "T5ForConditionalGeneration",
     .config = R"({"model_type": "t5", "vocab_size": 31, "d_model": 12,
         "d_kv": 3, "d_ff": 18, "num_layers": 3, "num_decoder_layers": 2,
         "num_heads": 6, "relative_attention_num_buckets": 8,
         "dropout_rate": 0.2, "relative_attention_max_distance": 10})",
     .takes_ring = false},
    // Prompts are in a table of their own, and the bias is of each text.
    {.name = "cpm3",
     .architecture = "CPM3ForLM",
     .config = R"({"model_type": "cpm3", "vocab_size": 31, "d_model": 12,
         "d_kv": 2, "d_ff": 18, "num_layers": 5, "num_heads": 6,
         "relative_attention_num_buckets": 8,
         "relative_attention_max_distance": 10, "dropout_rate": 0.2,
         "prompt_types": 15, "prompt_length": 2, "segment_types": 3})",
     .takes_ring = false,
     .segments = 3},
    {.name = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .config = R"({"model_type": "qwen3_moe", "vocab_size": 29,
         "hidden_size": 16, "intermediate_size": 20,
         "moe_intermediate_size": 12, "num_hidden_layers": 4,
         "num_attention_heads": 8, "head_dim": 4, "num_key_value_heads": 4,
         "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
         "max_position_embeddings": 16})",
     .has_experts = true},
    {.name = "balanced_experts",
     .architecture = "Qwen3MoeForCausalLM",
     .config = R"({"model_type": "qwen3_moe", "vocab_size": 29,
         "hidden_size": 16, "intermediate_size": 20,
         "moe_intermediate_size": 12, "num_hidden_layers": 4,
         "num_attention_heads": 8, "head_dim": 4, "num_key_value_heads": 4,
         "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
         "max_position_embeddings": 16,
         "output_router_logits": true, "router_aux_loss_coef": 0.5,
         "router_z_loss_coef": 0.1})",
     .takes_lower_precision = false,
     .takes_recomputation = false},
    // 15 patches and the class token.
    {.name = "vit",
     .architecture = "ViTForImageClassification",
     .config = R"({"model_type": "vit", "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 5,
         "num_attention_heads": 6, "image_size": [12, 20], "patch_size": 4,
         "num_labels": 3, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     .is_classifier = true,
     .takes_context = false,
     .image = {12, 20}},
    // Of which the encoder sees 7, by noise that is drawn.
    {.name = "mae",
     .architecture = "ViTMAEForPreTraining",
     .config = R"({"model_type": "vit_mae", "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 3,
         "num_attention_heads": 6, "image_size": [12, 20], "patch_size": 4,
         "mask_ratio": 0.5, "decoder_hidden_size": 8,
         "decoder_intermediate_size": 10, "decoder_num_hidden_layers": 2,
         "decoder_num_attention_heads": 4, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     .takes_context = false,
     .image = {12, 20}},
    {.name = "moco",
     .architecture = "MocoV3ForPreTraining",
     .config = R"({"model_type": "moco_v3", "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 4,
         "num_attention_heads": 6, "image_size": [12, 20], "patch_size": 4,
         "projection_hidden_size": 10, "projection_size": 8, "temperature": 0.5,
         "momentum": 0.7})",
     .takes_context = false,
     .image = {12, 20},
     .has_views = true,
     .takes_lower_precision = false},
    // Maps of 5 x 9, which windows do not divide, then 3 x 5.
    {.name = "swin",
     .architecture = "SwinForImageClassification",
     .config = R"({"model_type": "swin", "embed_dim": 12, "depths": [3, 2],
         "num_heads": [6, 4], "window_size": 3, "mlp_ratio": 1.5,
         "image_size": [10, 18], "patch_size": 2, "num_labels": 3,
         "drop_path_rate": 0.3, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     .is_classifier = true,
     .takes_sequence = false,
     .takes_context = false,
     .image = {10, 18}},
    {.name = "moe_adapters",
     .architecture = "Qwen3MoeForCausalLM",
     .config = R"({"model_type": "qwen3_moe", "vocab_size": 29,
         "hidden_size": 16, "intermediate_size": 20,
         "moe_intermediate_size": 12, "num_hidden_layers": 4,
         "num_attention_heads": 8, "head_dim": 4, "num_key_value_heads": 4,
         "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
         "max_position_embeddings": 16})",
     .has_experts = true,
     .has_adapters = true},
    {.name = "gpt_adapters",
     .architecture = "GPT2LMHeadModel",
     .config = R"({"model_type": "gpt2", "vocab_size": 31, "n_embd": 12,
         "n_layer": 5, "n_head": 6, "n_positions": 16, "resid_pdrop": 0.2,
         "embd_pdrop": 0.2, "attn_pdrop": 0.2})",
     .has_adapters = true}};

/// Number `number` of a step's batches.
/// @param is_padded whether the second text is shorter than the first.
inline ModelInput batch_of(
    const Subject& subject,
    int step,
    int number,
    bool is_padded) {
  torch::manual_seed(static_cast<uint64_t>(100 * step + number));
  ModelInput input;
  if (!subject.image.empty()) {
    // Batch norms of two rows would know their signs alone.
    const std::vector<int64_t> sizes{
        subject.has_views ? 6 : 2, 3, subject.image[0], subject.image[1]};
    input.pixel_values = torch::randn(sizes);
    if (subject.has_views) {
      input.others["second_pixel_values"] = torch::randn(sizes);
    }
    if (subject.is_classifier) {
      input.labels = torch::randint(3, {2});
    }
    return input;
  }
  input.input_ids = torch::randint(3, 29, {2, 8}, torch::kLong);
  if (is_padded) {
    input.attention_mask = torch::ones({2, 8}, torch::kLong);
    input.attention_mask[1].narrow(0, 6, 2).zero_();
  }
  input.labels =
      subject.is_classifier ? torch::randint(2, {2}) : input.input_ids.clone();
  if (!subject.is_classifier) {
    if (is_padded) {
      input.labels[1].narrow(0, 6, 2).fill_(-100);
    }
    input.labels[0][number] = -100; // as many everywhere
  }
  if (subject.segments > 0) {
    input.token_type_ids =
        torch::randint(subject.segments, {2, 8}, torch::kLong);
    input.others["context"] = torch::zeros({2, 8}, torch::kLong);
    input.others["context"].narrow(1, 0, 3).fill_(1);
    input.others["span"] = torch::zeros({2, 8}, torch::kLong);
    input.others["span"][0].narrow(0, 5, 3).fill_(1);
  }
  return input;
}

} // namespace tessera::zoo
