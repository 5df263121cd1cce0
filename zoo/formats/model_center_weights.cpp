// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/model_center_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/weights/file_regions.h"
#include "tessera/zoo/formats/numbered_names.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

using sharding::WeightEntry;
using sharding::WeightFiles;
using sharding::WeightSet;

/// How a tensor of ModelCenter becomes one of transformers.
enum class Change {
  kNone,
  kTransposed,
  /// The norm before layer N is the one behind layer N - 1 there, and the first
  /// one is that of the embeddings.
  kNormBehindLayer,
  kDuplicate, ///< it must equal the other one, and is left out
};

struct CenterRow {
  /// `*` matches a number; several are concatenated.
  std::vector<std::string> foreign;
  std::string native;
  Change change = Change::kNone;
};

using CenterRows = std::vector<CenterRow>;

/// Rows of a layer.
/// @param foreign,ours what their names begin with.
/// @param matrices how tensors change that are not of norms.
void add_layer(
    CenterRows& rows,
    const std::string& foreign,
    const std::string& native,
    const std::vector<std::pair<std::vector<std::string>, std::string>>& parts,
    Change matrices = Change::kNone) {
  for (const auto& [names, part] : parts) {
    CenterRow row{{}, native + part, matrices};
    for (const std::string& name : names) {
      row.foreign.push_back(foreign + name);
    }
    if (names.front().find("layernorm") != std::string::npos) {
      row.change = Change::kNone;
    }
    rows.push_back(std::move(row));
  }
}

/// BERT and RoBERTa.
CenterRows bert_rows(const std::string& head, const std::string& norm) {
  CenterRows rows = {
      {{"input_embedding"}, "embeddings.word_embeddings"},
      {{"position_embedding"}, "embeddings.position_embeddings"},
      {{"token_type_embedding"}, "embeddings.token_type_embeddings"},
      {{"encoder.layers.*.self_att.layernorm_before_attention"},
       "encoder.layer.*.output.LayerNorm",
       Change::kNormBehindLayer},
      {{"encoder.output_layernorm"},
       "encoder.layer.*.output.LayerNorm",
       Change::kNormBehindLayer},
      {{"pooler.dense"}, "pooler.dense"},
      {{"lm_head.dense"}, head + "dense"},
      {{"lm_head.layer_norm"}, head + norm},
      {{"lm_head.decoder"},
       head == "lm_head." ? "lm_head.decoder" : "cls.predictions.decoder"}};
  add_layer(
      rows,
      "encoder.layers.*.",
      "encoder.layer.*.",
      {{{"self_att.self_attention.project_q"}, "attention.self.query"},
       {{"self_att.self_attention.project_k"}, "attention.self.key"},
       {{"self_att.self_attention.project_v"}, "attention.self.value"},
       {{"self_att.self_attention.attention_out"}, "attention.output.dense"},
       {{"ffn.layernorm_before_ffn"}, "attention.output.LayerNorm"},
       {{"ffn.ffn.w_in.w"}, "intermediate.dense"},
       {{"ffn.ffn.w_out"}, "output.dense"}});
  return rows;
}

CenterRows gpt2_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "wte"},
      {{"position_embedding"}, "wpe"},
      {{"decoder.output_layernorm"}, "ln_f"}};
  add_layer(
      rows,
      "decoder.layers.*.",
      "h.*.",
      {{{"self_att.layernorm_before_attention"}, "ln_1"},
       {{"self_att.self_attention.project_q",
         "self_att.self_attention.project_k",
         "self_att.self_attention.project_v"},
        "attn.c_attn"},
       {{"self_att.self_attention.attention_out"}, "attn.c_proj"},
       {{"ffn.layernorm_before_ffn"}, "ln_2"},
       {{"ffn.ffn.w_in.w"}, "mlp.c_fc"},
       {{"ffn.ffn.w_out"}, "mlp.c_proj"}},
      Change::kTransposed);
  return rows;
}

CenterRows gptj_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "wte"},
      {{"output_projection.w"}, "lm_head"},
      {{"output_projection"}, "lm_head"},
      {{"decoder.output_layernorm"}, "ln_f"},
      {{"decoder.layers.*.ffn.layernorm_before_ffn"},
       "decoder.layers.*.self_att.layernorm_before_attention",
       Change::kDuplicate}};
  add_layer(
      rows,
      "decoder.layers.*.",
      "h.*.",
      {{{"self_att.layernorm_before_attention"}, "ln_1"},
       {{"self_att.self_attention.project_q"}, "attn.q_proj"},
       {{"self_att.self_attention.project_k"}, "attn.k_proj"},
       {{"self_att.self_attention.project_v"}, "attn.v_proj"},
       {{"self_att.self_attention.attention_out"}, "attn.out_proj"},
       {{"ffn.ffn.w_in.w"}, "mlp.fc_in"},
       {{"ffn.ffn.w_out"}, "mlp.fc_out"}});
  return rows;
}

CenterRows opt_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "model.decoder.embed_tokens"},
      {{"position_embedding"}, "model.decoder.embed_positions"},
      {{"decoder.output_layernorm"}, "model.decoder.final_layer_norm"}};
  add_layer(
      rows,
      "decoder.layers.*.",
      "model.decoder.layers.*.",
      {{{"self_att.layernorm_before_attention"}, "self_attn_layer_norm"},
       {{"self_att.self_attention.project_q"}, "self_attn.q_proj"},
       {{"self_att.self_attention.project_k"}, "self_attn.k_proj"},
       {{"self_att.self_attention.project_v"}, "self_attn.v_proj"},
       {{"self_att.self_attention.attention_out"}, "self_attn.out_proj"},
       {{"ffn.layernorm_before_ffn"}, "final_layer_norm"},
       {{"ffn.ffn.w_in.w"}, "fc1"},
       {{"ffn.ffn.w_out"}, "fc2"}});
  return rows;
}

CenterRows llama_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "model.embed_tokens"},
      {{"output_projection"}, "lm_head"},
      {{"output_projection.w"}, "lm_head"},
      {{"encoder.output_layernorm"}, "model.norm"}};
  add_layer(
      rows,
      "encoder.layers.*.",
      "model.layers.*.",
      {{{"self_att.layernorm_before_attention"}, "input_layernorm"},
       {{"self_att.self_attention.project_q"}, "self_attn.q_proj"},
       {{"self_att.self_attention.project_k"}, "self_attn.k_proj"},
       {{"self_att.self_attention.project_v"}, "self_attn.v_proj"},
       {{"self_att.self_attention.attention_out"}, "self_attn.o_proj"},
       {{"ffn.layernorm_before_ffn"}, "post_attention_layernorm"},
       {{"ffn.ffn.w_in.w_0"}, "mlp.gate_proj"},
       {{"ffn.ffn.w_in.w_1"}, "mlp.up_proj"},
       {{"ffn.ffn.w_out"}, "mlp.down_proj"}});
  return rows;
}

/// The published weights are divided by powers of 100, against overflow, all
/// those of the residual stream alike: the norm behind it takes that out.
CenterRows t5_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "shared"},
      {{"output_projection.w"}, "lm_head"},
      {{"output_projection"}, "lm_head"},
      {{"encoder.output_layernorm"}, "encoder.final_layer_norm"},
      {{"decoder.output_layernorm"}, "decoder.final_layer_norm"},
      {{"position_bias_enc.relative_attention_bias"},
       "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
       Change::kTransposed},
      {{"position_bias_dec.relative_attention_bias"},
       "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
       Change::kTransposed}};
  add_layer(
      rows,
      "encoder.layers.*.",
      "encoder.block.*.",
      {{{"self_att.layernorm_before_attention"}, "layer.0.layer_norm"},
       {{"self_att.self_attention.project_q"}, "layer.0.SelfAttention.q"},
       {{"self_att.self_attention.project_k"}, "layer.0.SelfAttention.k"},
       {{"self_att.self_attention.project_v"}, "layer.0.SelfAttention.v"},
       {{"self_att.self_attention.attention_out"}, "layer.0.SelfAttention.o"},
       {{"ffn.layernorm_before_ffn"}, "layer.1.layer_norm"},
       {{"ffn.ffn.w_in.w"}, "layer.1.DenseReluDense.wi"},
       {{"ffn.ffn.w_in.w_0"}, "layer.1.DenseReluDense.wi_0"},
       {{"ffn.ffn.w_in.w_1"}, "layer.1.DenseReluDense.wi_1"},
       {{"ffn.ffn.w_out"}, "layer.1.DenseReluDense.wo"}});
  add_layer(
      rows,
      "decoder.layers.*.",
      "decoder.block.*.",
      {{{"self_att.layernorm_before_attention"}, "layer.0.layer_norm"},
       {{"self_att.self_attention.project_q"}, "layer.0.SelfAttention.q"},
       {{"self_att.self_attention.project_k"}, "layer.0.SelfAttention.k"},
       {{"self_att.self_attention.project_v"}, "layer.0.SelfAttention.v"},
       {{"self_att.self_attention.attention_out"}, "layer.0.SelfAttention.o"},
       {{"cross_att.layernorm_before_attention"}, "layer.1.layer_norm"},
       {{"cross_att.self_attention.project_q"}, "layer.1.EncDecAttention.q"},
       {{"cross_att.self_attention.project_k"}, "layer.1.EncDecAttention.k"},
       {{"cross_att.self_attention.project_v"}, "layer.1.EncDecAttention.v"},
       {{"cross_att.self_attention.attention_out"},
        "layer.1.EncDecAttention.o"},
       {{"ffn.layernorm_before_ffn"}, "layer.2.layer_norm"},
       {{"ffn.ffn.w_in.w"}, "layer.2.DenseReluDense.wi"},
       {{"ffn.ffn.w_in.w_0"}, "layer.2.DenseReluDense.wi_0"},
       {{"ffn.ffn.w_in.w_1"}, "layer.2.DenseReluDense.wi_1"},
       {{"ffn.ffn.w_out"}, "layer.2.DenseReluDense.wo"}});
  return rows;
}

CenterRows glm_rows() {
  CenterRows rows = {
      {{"input_embedding"}, "word_embeddings"},
      {{"position_embedding"}, "transformer.position_embeddings"},
      {{"block_position_embedding"}, "transformer.block_position_embeddings"},
      {{"encoder.output_layernorm"}, "transformer.final_layernorm"}};
  add_layer(
      rows,
      "encoder.layers.*.",
      "transformer.layers.*.",
      {{{"self_att.layernorm_before_attention"}, "input_layernorm"},
       {{"self_att.self_attention.project_q",
         "self_att.self_attention.project_k",
         "self_att.self_attention.project_v"},
        "attention.query_key_value"},
       {{"self_att.self_attention.attention_out"}, "attention.dense"},
       {{"ffn.layernorm_before_ffn"}, "post_attention_layernorm"},
       {{"ffn.ffn.w_in.w"}, "mlp.dense_h_to_4h"},
       {{"ffn.ffn.w_out"}, "mlp.dense_4h_to_h"}});
  return rows;
}

CenterRows vit_rows() {
  CenterRows rows = {
      {{"patch_embed.cls_token"}, "embeddings.cls_token"},
      {{"patch_embed.pos_embed"}, "embeddings.position_embeddings"},
      {{"patch_embed.proj"}, "embeddings.patch_embeddings.projection"},
      {{"blocks.output_layernorm"}, "layernorm"},
      {{"head"}, "classifier"}};
  add_layer(
      rows,
      "blocks.layers.*.",
      "encoder.layer.*.",
      {{{"self_att.layernorm_before_attention"}, "layernorm_before"},
       {{"self_att.self_attention.project_q"}, "attention.attention.query"},
       {{"self_att.self_attention.project_k"}, "attention.attention.key"},
       {{"self_att.self_attention.project_v"}, "attention.attention.value"},
       {{"self_att.self_attention.attention_out"}, "attention.output.dense"},
       {{"ffn.layernorm_before_ffn"}, "layernorm_after"},
       {{"ffn.ffn.w_in.w"}, "intermediate.dense"},
       {{"ffn.ffn.w_out"}, "output.dense"}});
  return rows;
}

/// @throws tessera::Error if there are none.
CenterRows rows_of(const WeightFiles& files, const std::string& model_type) {
  using Rows = CenterRows (*)();
  static const std::map<std::string, Rows> kRows = {
      {"bert",
       [] { return bert_rows("cls.predictions.transform.", "LayerNorm"); }},
      {"roberta", [] { return bert_rows("lm_head.", "layer_norm"); }},
      {"gpt2", gpt2_rows},
      {"gptj", gptj_rows},
      {"opt", opt_rows},
      {"llama", llama_rows},
      {"t5", t5_rows},
      {"glm", glm_rows},
      {"vit", vit_rows}};
  const auto found = kRows.find(model_type);
  TESSERA_CHECK(
      found != kRows.end(),
      "{}: the weights have ModelCenter's names, which are not known for a {}{}; convert them to transformers' first",
      files.path(),
      model_type,
      model_type == "longformer"
          ? ", because ModelCenter's has a norm that transformers' lacks"
          : "");
  return found->second();
}

/// Renames the tensors of a checkpoint.
class CenterNames {
 public:
  CenterNames(const WeightFiles& files, CenterRows rows)
      : files_(files), rows_(std::move(rows)) {
    result_.files = files.weights().files;
    for (const auto& [name, entry] : files.entries()) {
      const size_t at = name.find(".layers.");
      if (at != std::string::npos) {
        layers_.insert(layer_number(name.substr(at)));
      }
    }
  }

  WeightFiles renamed() {
    for (const auto& [name, entry] : files_.entries()) {
      if (!rename(name)) {
        add(entry, name);
      }
    }
    return WeightFiles::of(files_.path(), std::move(result_));
  }

 private:
  /// @param rest of a name, from ".layers." on.
  static std::string layer_number(const std::string& rest) {
    const size_t begin = std::string_view(".layers.").size();
    return rest.substr(begin, rest.find('.', begin) - begin);
  }

  void add(WeightEntry entry, const std::string& name) {
    entry.name = name;
    TESSERA_CHECK(
        result_.entries.emplace(name, std::move(entry)).second,
        "{}: several tensors are '{}' in transformers' names",
        files_.path(),
        name);
  }

  /// Whether the table has the tensor.
  bool rename(const std::string& given) {
    std::string name = given;
    std::string wrapper;
    for (const char* prefix : {"bert.", "roberta."}) {
      if (name.starts_with(prefix)) {
        wrapper = prefix;
        name = name.substr(wrapper.size());
      }
    }
    for (const CenterRow& row : rows_) {
      for (const std::string& foreign : row.foreign) {
        const auto match = match_module(foreign, name);
        if (match.found) {
          if (foreign == row.foreign.front()) {
            apply(row, match, wrapper);
          }
          return true; // the others are taken with the first one
        }
      }
    }
    return false;
  }

  void apply(
      const CenterRow& row,
      const NumberedName& match,
      const std::string& wrapper) {
    std::vector<WeightEntry> parts;
    for (const std::string& foreign : row.foreign) {
      parts.push_back(part(wrapper + filled(foreign, match)));
    }
    const std::string name = row.change == Change::kNormBehindLayer
                                 ? norm_name(match)
                                 : filled(row.native, match);
    switch (row.change) {
      case Change::kNone:
        add(concatenated_rows(parts), name);
        break;
      case Change::kTransposed:
        add(sharding::transposed(concatenated_rows(parts)), name);
        break;
      case Change::kNormBehindLayer:
        add(parts.front(), name);
        break;
      case Change::kDuplicate: {
        const WeightEntry other = part(wrapper + name);
        TESSERA_CHECK(
            at::equal(
                sharding::loaded_tensor(parts.front()),
                sharding::loaded_tensor(other)),
            "{}: '{}' and '{}' differ, but are one tensor in transformers' model",
            files_.path(),
            parts.front().name,
            other.name);
        break;
      }
    }
  }

  static WeightEntry concatenated_rows(const std::vector<WeightEntry>& parts) {
    return parts.size() == 1
               ? parts.front()
               : sharding::concatenated(parts.front().name, parts, 0);
  }

  WeightEntry part(const std::string& name) const {
    const WeightEntry* found = files_.find(name);
    TESSERA_CHECK(
        found != nullptr,
        "{} lacks the tensor '{}', which belongs to others that it has; download it again",
        files_.path(),
        name);
    return *found;
  }

  /// The norm behind the layer before, or, behind all, behind the last one.
  std::string norm_name(const NumberedName& match) const {
    const int64_t layer = match.numbers.empty()
                              ? static_cast<int64_t>(layers_.size())
                              : std::stoll(match.numbers.front());
    return (layer == 0 ? std::string("embeddings.LayerNorm")
                       : "encoder.layer." + std::to_string(layer - 1) +
                             ".output.LayerNorm") +
           match.rest;
  }

  const WeightFiles& files_;
  CenterRows rows_;
  std::set<std::string> layers_; ///< their numbers
  WeightSet result_;
};

} // namespace

bool has_model_center_names(const WeightFiles& files) {
  return std::any_of(
      files.entries().begin(), files.entries().end(), [](const auto& item) {
        return item.first.find(".self_att.self_attention.project_q") !=
               std::string::npos;
      });
}

WeightFiles from_model_center_weights(
    const WeightFiles& files,
    const std::string& model_type) {
  if (model_type.starts_with("cpm")) {
    return files;
  }
  return CenterNames(files, rows_of(files, model_type)).renamed();
}

} // namespace tessera::zoo
