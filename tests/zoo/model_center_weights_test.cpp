// SPDX-License-Identifier: Apache-2.0
// Weights under ModelCenter's names. The fixtures of transformers are renamed
// as the scripts with which ModelCenter's published weights were made do it.
#include "tessera/zoo/formats/model_center_weights.h"

#include "support/expect_error.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/model_fixture.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo::model_center_weights_test {

namespace {

namespace fs = std::filesystem;
using Tensors = NamedTensors;

Tensors tensors_of(const ModelFixture& model) {
  return read_named_tensors(model.folder() / "model.safetensors");
}

/// Builds the tensors of a checkpoint from those of transformers.
class Renamed {
 public:
  explicit Renamed(Tensors foreign) : foreign_(std::move(foreign)) {}

  void same(const std::string& center, const std::string& hf) {
    for (const char* end : {".weight", ".bias", ""}) {
      if (const auto found = foreign_.find(hf + end); found != foreign_.end()) {
        made[center + end] = found->second;
      }
    }
  }
  void turned(const std::string& center, const std::string& hf) {
    same(center, hf);
    if (auto found = made.find(center + ".weight"); found != made.end()) {
      found->second = found->second.t().contiguous();
    }
  }
  /// One of three parts of the output features.
  void third(
      const std::string& center,
      const std::string& hf,
      int64_t part,
      bool is_turned) {
    const at::Tensor weight = foreign_.at(hf + ".weight");
    made[center + ".weight"] =
        (is_turned ? weight.t() : weight).chunk(3, 0)[part].contiguous();
    made[center + ".bias"] =
        foreign_.at(hf + ".bias").chunk(3, 0)[part].contiguous();
  }

  Tensors made;

 private:
  Tensors foreign_;
};

std::string number(int layer) {
  return std::to_string(layer);
}

constexpr const char* kQkv[] = {"project_q", "project_k", "project_v"};

Tensors center_bert(Renamed names, const std::string& base, bool is_roberta) {
  names.same("input_embedding", base + "embeddings.word_embeddings");
  names.same("position_embedding", base + "embeddings.position_embeddings");
  names.same("token_type_embedding", base + "embeddings.token_type_embeddings");
  const std::string layers = base + "encoder.layer.";
  for (int i = 0; i < 2; ++i) {
    const std::string hf = layers + number(i);
    const std::string own = "encoder.layers." + number(i);
    names.same(
        own + ".self_att.layernorm_before_attention",
        i == 0 ? base + "embeddings.LayerNorm"
               : layers + number(i - 1) + ".output.LayerNorm");
    const char* foreign[] = {"query", "key", "value"};
    for (int k = 0; k < 3; ++k) {
      names.same(
          own + ".self_att.self_attention." + kQkv[k],
          hf + ".attention.self." + foreign[k]);
    }
    names.same(
        own + ".self_att.self_attention.attention_out",
        hf + ".attention.output.dense");
    names.same(
        own + ".ffn.layernorm_before_ffn", hf + ".attention.output.LayerNorm");
    names.same(own + ".ffn.ffn.w_in.w", hf + ".intermediate.dense");
    names.same(own + ".ffn.ffn.w_out", hf + ".output.dense");
  }
  names.same("encoder.output_layernorm", layers + "1.output.LayerNorm");
  const std::string head = is_roberta ? "lm_head." : "cls.predictions.";
  const std::string inner = is_roberta ? head : head + "transform.";
  names.same("lm_head.dense", inner + "dense");
  names.same(
      "lm_head.layer_norm", inner + (is_roberta ? "layer_norm" : "LayerNorm"));
  names.same("lm_head.decoder", head.substr(0, head.size() - 1));
  names.made["lm_head.decoder.weight"] = names.made["input_embedding.weight"];
  return names.made;
}

Tensors center_gpt2(Renamed names) {
  names.same("input_embedding", "transformer.wte");
  names.same("position_embedding", "transformer.wpe");
  names.same("decoder.output_layernorm", "transformer.ln_f");
  for (int i = 0; i < 2; ++i) {
    const std::string hf = "transformer.h." + number(i);
    const std::string own = "decoder.layers." + number(i);
    names.same(own + ".self_att.layernorm_before_attention", hf + ".ln_1");
    for (int k = 0; k < 3; ++k) {
      names.third(
          own + ".self_att.self_attention." + kQkv[k],
          hf + ".attn.c_attn",
          k,
          true);
    }
    names.turned(
        own + ".self_att.self_attention.attention_out", hf + ".attn.c_proj");
    names.same(own + ".ffn.layernorm_before_ffn", hf + ".ln_2");
    names.turned(own + ".ffn.ffn.w_in.w", hf + ".mlp.c_fc");
    names.turned(own + ".ffn.ffn.w_out", hf + ".mlp.c_proj");
  }
  return names.made;
}

Tensors center_gptj(Renamed names) {
  names.same("input_embedding", "transformer.wte");
  names.same("output_projection.w", "lm_head");
  names.same("decoder.output_layernorm", "transformer.ln_f");
  for (int i = 0; i < 2; ++i) {
    const std::string hf = "transformer.h." + number(i);
    const std::string own = "decoder.layers." + number(i);
    names.same(own + ".self_att.layernorm_before_attention", hf + ".ln_1");
    names.same(own + ".ffn.layernorm_before_ffn", hf + ".ln_1");
    const char* foreign[] = {"q_proj", "k_proj", "v_proj"};
    for (int k = 0; k < 3; ++k) {
      names.same(
          own + ".self_att.self_attention." + kQkv[k],
          hf + ".attn." + foreign[k]);
    }
    names.same(
        own + ".self_att.self_attention.attention_out", hf + ".attn.out_proj");
    names.same(own + ".ffn.ffn.w_in.w", hf + ".mlp.fc_in");
    names.same(own + ".ffn.ffn.w_out", hf + ".mlp.fc_out");
  }
  return names.made;
}

/// OPT and LLaMA, which differ in names only.
Tensors center_decoder(
    Renamed names,
    const std::string& base,
    const std::string& stack,
    const std::map<std::string, std::string>& outer,
    const std::map<std::string, std::string>& inner) {
  for (const auto& [own, hf] : outer) {
    names.same(own, hf);
  }
  for (int i = 0; i < 2; ++i) {
    for (const auto& [own, hf] : inner) {
      names.same(
          stack + ".layers." + number(i) + "." + own,
          base + number(i) + "." + hf);
    }
  }
  return names.made;
}

Tensors center_opt(const Renamed& names) {
  return center_decoder(
      names,
      "model.decoder.layers.",
      "decoder",
      {{"input_embedding", "model.decoder.embed_tokens"},
       {"position_embedding", "model.decoder.embed_positions"},
       {"decoder.output_layernorm", "model.decoder.final_layer_norm"}},
      {{"self_att.layernorm_before_attention", "self_attn_layer_norm"},
       {"self_att.self_attention.project_q", "self_attn.q_proj"},
       {"self_att.self_attention.project_k", "self_attn.k_proj"},
       {"self_att.self_attention.project_v", "self_attn.v_proj"},
       {"self_att.self_attention.attention_out", "self_attn.out_proj"},
       {"ffn.layernorm_before_ffn", "final_layer_norm"},
       {"ffn.ffn.w_in.w", "fc1"},
       {"ffn.ffn.w_out", "fc2"}});
}

Tensors center_llama(const Renamed& names) {
  return center_decoder(
      names,
      "model.layers.",
      "encoder",
      {{"input_embedding", "model.embed_tokens"},
       {"output_projection", "lm_head"},
       {"encoder.output_layernorm", "model.norm"}},
      {{"self_att.layernorm_before_attention", "input_layernorm"},
       {"self_att.self_attention.project_q", "self_attn.q_proj"},
       {"self_att.self_attention.project_k", "self_attn.k_proj"},
       {"self_att.self_attention.project_v", "self_attn.v_proj"},
       {"self_att.self_attention.attention_out", "self_attn.o_proj"},
       {"ffn.layernorm_before_ffn", "post_attention_layernorm"},
       {"ffn.ffn.w_in.w_0", "mlp.gate_proj"},
       {"ffn.ffn.w_in.w_1", "mlp.up_proj"},
       {"ffn.ffn.w_out", "mlp.down_proj"}});
}

Tensors center_t5(Renamed names, bool is_gated) {
  names.same("input_embedding", "shared");
  names.same("output_projection.w", "lm_head");
  const char* foreign[] = {"q", "k", "v"};
  for (const std::string stack : {"encoder", "decoder"}) {
    names.same(stack + ".output_layernorm", stack + ".final_layer_norm");
    names.turned(
        "position_bias_" + stack.substr(0, 3) + ".relative_attention_bias",
        stack + ".block.0.layer.0.SelfAttention.relative_attention_bias");
    for (int i = 0; i < 2; ++i) {
      const std::string hf = stack + ".block." + number(i) + ".layer.";
      const std::string own = stack + ".layers." + number(i);
      int at = 0;
      const auto attention = [&](const std::string& kind, const char* module) {
        const std::string layer = hf + number(at++);
        names.same(
            own + kind + ".layernorm_before_attention", layer + ".layer_norm");
        for (int k = 0; k < 3; ++k) {
          names.same(
              own + kind + ".self_attention." + kQkv[k],
              layer + module + foreign[k]);
        }
        names.same(
            own + kind + ".self_attention.attention_out", layer + module + "o");
      };
      attention(".self_att", ".SelfAttention.");
      if (stack == "decoder") {
        attention(".cross_att", ".EncDecAttention.");
      }
      const std::string layer = hf + number(at);
      names.same(own + ".ffn.layernorm_before_ffn", layer + ".layer_norm");
      const std::string dense = layer + ".DenseReluDense.";
      if (is_gated) {
        names.same(own + ".ffn.ffn.w_in.w_0", dense + "wi_0");
        names.same(own + ".ffn.ffn.w_in.w_1", dense + "wi_1");
      } else {
        names.same(own + ".ffn.ffn.w_in.w", dense + "wi");
      }
      names.same(own + ".ffn.ffn.w_out", dense + "wo");
    }
  }
  Tensors made = names.made;
  for (const std::string stack : {"enc", "dec"}) {
    const std::string bias =
        "position_bias_" + stack + ".relative_attention_bias";
    auto item = made.extract(bias + ".weight");
    item.key() = bias;
    made.insert(std::move(item));
  }
  return made;
}

Tensors center_glm(Renamed names) {
  names.same("input_embedding", "glm.word_embeddings");
  const std::string base = "glm.transformer.";
  names.same("position_embedding", base + "position_embeddings");
  names.same("block_position_embedding", base + "block_position_embeddings");
  names.same("encoder.output_layernorm", base + "final_layernorm");
  for (int i = 0; i < 2; ++i) {
    const std::string hf = base + "layers." + number(i);
    const std::string own = "encoder.layers." + number(i);
    names.same(
        own + ".self_att.layernorm_before_attention", hf + ".input_layernorm");
    for (int k = 0; k < 3; ++k) {
      names.third(
          own + ".self_att.self_attention." + kQkv[k],
          hf + ".attention.query_key_value",
          k,
          false);
    }
    names.same(
        own + ".self_att.self_attention.attention_out",
        hf + ".attention.dense");
    names.same(
        own + ".ffn.layernorm_before_ffn", hf + ".post_attention_layernorm");
    names.same(own + ".ffn.ffn.w_in.w", hf + ".mlp.dense_h_to_4h");
    names.same(own + ".ffn.ffn.w_out", hf + ".mlp.dense_4h_to_h");
  }
  return names.made;
}

Tensors center_vit(Renamed names) {
  names.same("patch_embed.cls_token", "vit.embeddings.cls_token");
  names.same("patch_embed.pos_embed", "vit.embeddings.position_embeddings");
  names.same("patch_embed.proj", "vit.embeddings.patch_embeddings.projection");
  names.same("blocks.output_layernorm", "vit.layernorm");
  names.same("head", "classifier");
  for (int i = 0; i < 2; ++i) {
    const std::string hf = "vit.encoder.layer." + number(i);
    const std::string own = "blocks.layers." + number(i);
    names.same(
        own + ".self_att.layernorm_before_attention", hf + ".layernorm_before");
    const char* foreign[] = {"query", "key", "value"};
    for (int k = 0; k < 3; ++k) {
      names.same(
          own + ".self_att.self_attention." + kQkv[k],
          hf + ".attention.attention." + foreign[k]);
    }
    names.same(
        own + ".self_att.self_attention.attention_out",
        hf + ".attention.output.dense");
    names.same(own + ".ffn.layernorm_before_ffn", hf + ".layernorm_after");
    names.same(own + ".ffn.ffn.w_in.w", hf + ".intermediate.dense");
    names.same(own + ".ffn.ffn.w_out", hf + ".output.dense");
  }
  return names.made;
}

void expect_same_model(const std::string& name, const Tensors& center) {
  SCOPED_TRACE(name);
  const ModelFixture fixture(name);
  const TemporaryFolder folder;
  write_named_tensors(folder / "center.safetensors", center);
  FromPretrainedOptions options;
  options.weights = folder / "center.safetensors";
  ASSERT_TRUE(
      has_model_center_names(sharding::WeightFiles::open(options.weights)));
  const auto got = from_pretrained(fixture.folder(), options);
  const auto want = from_pretrained(fixture.folder());
  const auto parameters = got->named_parameters();
  ASSERT_EQ(parameters.size(), want->named_parameters().size());
  for (const auto& item : want->named_parameters()) {
    const at::Tensor* found = parameters.find(item.key());
    ASSERT_NE(found, nullptr) << item.key();
    EXPECT_TRUE(torch::equal(*found, item.value())) << item.key();
  }
}

Renamed renamed(const char* name) {
  return Renamed(tensors_of(ModelFixture(name)));
}

} // namespace

TEST(ModelCenterWeights, AreThoseOfTransformers) {
  expect_same_model("bert", center_bert(renamed("bert"), "bert.", false));
  expect_same_model(
      "roberta", center_bert(renamed("roberta"), "roberta.", true));
  expect_same_model("gpt2", center_gpt2(renamed("gpt2")));
  expect_same_model("gptj", center_gptj(renamed("gptj")));
  expect_same_model("opt", center_opt(renamed("opt")));
  expect_same_model("llama", center_llama(renamed("llama")));
  expect_same_model("t5", center_t5(renamed("t5"), false));
  expect_same_model("t5_v1_1", center_t5(renamed("t5_v1_1"), true));
  expect_same_model("glm_2021", center_glm(renamed("glm_2021")));
  expect_same_model("vit_classifier", center_vit(renamed("vit_classifier")));
}

TEST(ModelCenterWeights, ThatCannotBeExpressedAreRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder / "center.safetensors";
  const auto read = [&](const Tensors& tensors, const char* type) {
    write_named_tensors(path, tensors);
    from_model_center_weights(sharding::WeightFiles::open(path), type);
  };
  Tensors gptj = center_gptj(renamed("gptj"));
  gptj["decoder.layers.1.ffn.layernorm_before_ffn.weight"] =
      gptj["decoder.layers.1.ffn.layernorm_before_ffn.weight"] + 1;
  expect_error(
      [&] { read(gptj, "gptj"); },
      {"center.safetensors", "layernorm_before_ffn.weight' and", "differ"});
  Tensors gpt2 = center_gpt2(renamed("gpt2"));
  gpt2.erase("decoder.layers.1.self_att.self_attention.project_k.weight");
  expect_error(
      [&] { read(gpt2, "gpt2"); }, {"lacks", "layers.1.", "project_k.weight"});
  expect_error([&] { read(gpt2, "longformer"); }, {"longformer", "a norm"});
}

} // namespace tessera::zoo::model_center_weights_test
