// SPDX-License-Identifier: Apache-2.0
// Layers and tokens that training steps leave out, held against formulas in
// plain LibTorch. Over layouts of ranks: step_drops_layouts_test.cpp.
#include "tessera/zoo/models/step_drops.h"

#include "support/expect_error.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo::step_drops_test {

namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kTokens = 10;
constexpr int64_t kLayers = 5;
constexpr int64_t kHeads = 4;

struct Family {
  const char* name;
  const char* architecture;
  const char* config;
};

const Family kGpt{"gpt", "GPT2Model", R"({"model_type": "gpt2",
    "vocab_size": 31, "n_embd": 16, "n_layer": 5, "n_head": 4,
    "n_positions": 16, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
    "initializer_range": 0.3})"};
const Family kLlama{"llama", "LlamaModel", R"({"model_type": "llama",
    "vocab_size": 31, "hidden_size": 16, "intermediate_size": 20,
    "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5, "initializer_range": 0.3})"};
const Family kBert{"bert", "BertModel", R"({"model_type": "bert",
    "vocab_size": 31, "hidden_size": 16, "intermediate_size": 20,
    "num_hidden_layers": 5, "num_attention_heads": 4,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0, "layer_norm_eps": 1e-5,
    "initializer_range": 0.3})"};

/// The transformers as formulas of whole tensors: tokens that a layer does not
/// get are neither keys nor changed.
class Formula {
 public:
  Formula(const Family& family, const Model& model)
      : is_llama_(&family == &kLlama), is_bert_(&family == &kBert) {
    for (const auto& item : model.named_parameters()) {
      weights_[item.key()] = item.value().detach().requires_grad_();
    }
  }

  /// @param keep probabilities of the layers; 0: left out.
  /// @param gets bool [B, S] of each layer.
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& seen,
      const std::vector<double>& keep,
      const std::vector<at::Tensor>& gets) {
    at::Tensor x = at::embedding(weight("embeddings.tokens.weight"), ids);
    if (!is_llama_) {
      x = x + weight("embeddings.positions.weight").narrow(0, 0, kTokens);
    }
    if (is_bert_) {
      x = norm(
          "embeddings.norm", x + weight("embeddings.token_types.weight")[0]);
    }
    at::Tensor pairs = seen.unsqueeze(1);
    if (!is_bert_) {
      pairs = pairs & torch::ones({kTokens, kTokens}, at::kBool).tril();
    }
    for (size_t l = 0; l < keep.size(); ++l) {
      if (keep[l] > 0) {
        const at::Tensor y = layer(
            "layers." + std::to_string(l) + ".",
            x,
            pairs & gets[l].unsqueeze(1),
            1 / keep[l]);
        x = at::where(gets[l].unsqueeze(-1), y, x);
      }
    }
    return is_bert_ ? x : norm("final_norm", x);
  }

  const std::map<std::string, at::Tensor>& weights() const {
    return weights_;
  }

 private:
  at::Tensor weight(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? at::Tensor() : found->second;
  }

  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, weight(name + ".weight"), weight(name + ".bias"));
  }

  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    if (is_llama_) {
      return x * (x.square().mean(-1, true) + 1e-5).rsqrt() *
             weight(name + ".weight");
    }
    const at::Tensor centered = x - x.mean(-1, true);
    return centered * (centered.square().mean(-1, true) + 1e-5).rsqrt() *
               weight(name + ".weight") +
           weight(name + ".bias");
  }

  static at::Tensor rotated(const at::Tensor& x) {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor angles =
        torch::arange(kTokens, at::kDouble).unsqueeze(1) *
        at::pow(1e4, -torch::arange(half, at::kDouble) / half);
    const auto parts = x.chunk(2, -1);
    return at::cat(
        {parts[0] * angles.cos() - parts[1] * angles.sin(),
         parts[1] * angles.cos() + parts[0] * angles.sin()},
        -1);
  }

  at::Tensor attention(
      const std::string& name,
      const at::Tensor& x,
      const at::Tensor& pairs) const {
    const auto by_head = [&](const char* label) {
      return linear(name + label, x).unflatten(-1, {-1, 4}).transpose(1, 2);
    };
    at::Tensor q = by_head("query");
    at::Tensor k = by_head("key");
    at::Tensor v = by_head("value");
    if (is_llama_) {
      q = rotated(q);
      k = rotated(k).repeat_interleave(2, 1);
      v = v.repeat_interleave(2, 1);
    }
    // Of a query without keys nothing is used.
    const at::Tensor open = pairs | ~pairs.any(-1, true);
    const at::Tensor scores = (q.matmul(k.transpose(2, 3)) / 2)
                                  .masked_fill(~open.unsqueeze(1), -INFINITY);
    return linear(
        name + "output",
        scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2));
  }

  at::Tensor inner(const std::string& name, const at::Tensor& x) const {
    if (is_llama_) {
      return linear(
          name + "down",
          at::silu(linear(name + "gate", x)) * linear(name + "up", x));
    }
    return linear(
        name + "down",
        at::gelu(linear(name + "up", x), is_bert_ ? "none" : "tanh"));
  }

  at::Tensor layer(
      const std::string& name,
      const at::Tensor& x,
      const at::Tensor& pairs,
      double scale) const {
    const std::string first = name + "attention_norm";
    const std::string second = name + "feed_forward_norm";
    if (is_bert_) {
      const at::Tensor y =
          norm(first, x + scale * attention(name + "attention.", x, pairs));
      return norm(second, y + scale * inner(name + "feed_forward.", y));
    }
    const at::Tensor y =
        x + scale * attention(name + "attention.", norm(first, x), pairs);
    return y + scale * inner(name + "feed_forward.", norm(second, y));
  }

  bool is_llama_;
  bool is_bert_;
  std::map<std::string, at::Tensor> weights_;
};

std::shared_ptr<Model> model_of(const Family& family) {
  torch::manual_seed(2);
  auto model = from_config(
      nlohmann::json::parse(family.config),
      {.architecture = family.architecture});
  model->to(at::kDouble);
  model->train();
  return model;
}

/// The whole run of a step against the formula: hidden states and gradients.
void expect_formula(
    const Family& family,
    const std::optional<LayerDropOptions>& layer_drop,
    const std::optional<TokenDropOptions>& token_drop,
    int64_t step) {
  SCOPED_TRACE(family.name);
  const RandomKey key{.seed = 6, .step = step, .micro_batch = 1};
  const auto model = model_of(family);
  if (layer_drop) {
    model->drop_layers(*layer_drop);
  }
  if (token_drop) {
    model->drop_tokens(*token_drop);
  }
  ModelInput input;
  input.input_ids = torch::randint(1, 31, {kRows, kTokens}, at::kLong);
  input.attention_mask = torch::ones({kRows, kTokens}, at::kLong);
  input.attention_mask[1].narrow(0, 6, 4).zero_();
  const at::Tensor seen = input.attention_mask.to(at::kBool);
  const at::Tensor direction =
      torch::randn({kRows, kTokens, 16}, at::kDouble) * seen.unsqueeze(-1);

  std::vector<double> keep;
  std::vector<at::Tensor> gets;
  {
    const RandomKeyScope random(key, at::kCPU);
    const StepDrops drops(layer_drop, token_drop, key, kLayers);
    for (int64_t l = 0; l < kLayers; ++l) {
      double p = 1;
      if (layer_drop) {
        const double theta =
            layer_drop->theta +
            (1 - layer_drop->theta) *
                std::exp(-layer_drop->gamma * static_cast<double>(step));
        p = 1 - static_cast<double>(l) / kLayers * (1 - theta);
      }
      keep.push_back(uniform_of_step(key, l) < p ? p : 0);
      gets.push_back(torch::ones({kRows, kTokens}, at::kBool));
      const at::Tensor places = drops.tokens_of(l, kRows, kTokens, at::kCPU);
      EXPECT_EQ(
          places.defined(), token_drop.has_value() && l > 0 && l + 1 < kLayers);
      if (places.defined()) {
        EXPECT_EQ(places.size(1), 3 + step); // of 10, in 7 steps
        gets.back() =
            torch::zeros({kRows, kTokens}, at::kBool).scatter(1, places, true);
        EXPECT_EQ(gets.back().sum().item<int64_t>(), kRows * (3 + step));
      }
    }
  }
  Formula formula(family, *model);
  const at::Tensor expected =
      formula.forward(input.input_ids, seen, keep, gets) * seen.unsqueeze(-1);
  (expected * direction).sum().backward();
  at::Tensor found;
  {
    const RandomKeyScope random(key, at::kCPU);
    found = model->forward(input).last_hidden_state * seen.unsqueeze(-1);
  }
  (found * direction).sum().backward();
  // The tables of rotations are made from angles in float32.
  const double tolerance = &family == &kLlama ? 1e-4 : 1e-9;
  EXPECT_TRUE(found.allclose(expected, tolerance, tolerance))
      << (found - expected).abs().max();
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    const at::Tensor& wanted = formula.weights().at(item.key()).grad();
    ASSERT_EQ(gradient.defined(), wanted.defined()) << item.key();
    if (wanted.defined()) {
      EXPECT_TRUE(gradient.allclose(wanted, tolerance, tolerance))
          << item.key() << (gradient - wanted).abs().max();
    }
  }
}

} // namespace

TEST(LayerDrop, IsTheFormula) {
  for (const Family* family : {&kGpt, &kLlama, &kBert}) {
    for (const int64_t step : {0, 2, 9}) {
      expect_formula(
          *family, LayerDropOptions{.theta = 0.1, .gamma = 0.7}, {}, step);
    }
  }
}

TEST(TokenDrop, IsTheFormula) {
  for (const Family* family : {&kGpt, &kLlama, &kBert}) {
    for (const int64_t step : {0, 4}) {
      expect_formula(
          *family,
          {},
          TokenDropOptions{.min_tokens = 3, .steps = 7, .multiple = 1},
          step);
    }
  }
}

TEST(LayerDrop, IsAsOftenAsItsProbability) {
  const LayerDropOptions options{.theta = 0.4, .gamma = 1};
  std::vector<int64_t> kept(kLayers);
  constexpr int64_t kSteps = 4000;
  for (int64_t step = 100; step < 100 + kSteps; ++step) {
    const StepDrops drops(
        options, {}, {.seed = 1, .step = step, .micro_batch = 0}, kLayers);
    const StepDrops same(
        options, {}, {.seed = 1, .step = step, .micro_batch = 3}, kLayers);
    for (int64_t l = 0; l < kLayers; ++l) {
      const bool keeps = drops.keeps_layer(l);
      EXPECT_EQ(keeps, same.keeps_layer(l));
      kept[static_cast<size_t>(l)] += keeps ? 1 : 0;
    }
  }
  for (int64_t l = 0; l < kLayers; ++l) {
    const double p = 1 - static_cast<double>(l) / kLayers * 0.6;
    EXPECT_NEAR(keep_probability(options, l, kLayers, 100), p, 1e-12);
    // Four standard deviations of a share of 4000 draws.
    EXPECT_NEAR(
        static_cast<double>(kept[static_cast<size_t>(l)]) / kSteps, p, 0.032);
  }
}

TEST(TokenDrop, GrowsToAllTokens) {
  const TokenDropOptions options{
      .min_tokens = 100, .steps = 10, .multiple = 16};
  EXPECT_EQ(kept_tokens(options, 512, 0), 100);
  EXPECT_EQ(kept_tokens(options, 512, 1), 128); // 141.2
  EXPECT_EQ(kept_tokens(options, 512, 9), 464); // 470.8
  EXPECT_EQ(kept_tokens(options, 512, 10), 512);
  EXPECT_EQ(kept_tokens(options, 80, 0), 80);
}

TEST(StepDrops, AreNotThoseOfEvaluation) {
  const auto model = model_of(kGpt);
  ModelInput input;
  input.input_ids = torch::randint(31, {kRows, kTokens}, at::kLong);
  model->eval();
  const at::Tensor expected = model->forward(input).last_hidden_state;
  model->drop_layers({.theta = 0, .gamma = 50});
  model->drop_tokens({.min_tokens = 3, .steps = 4, .multiple = 1});
  EXPECT_TRUE(model->forward(input).last_hidden_state.equal(expected));
  model->train();
  expect_error([&] { model->forward(input); }, {"RandomKeyScope", "eval()"});
  const RandomKeyScope random({.seed = 1, .step = 2}, at::kCPU);
  EXPECT_FALSE(model->forward(input).last_hidden_state.equal(expected));
}

TEST(StepDrops, AreRefusedWhereTheyAreNotSupported) {
  const auto t5 = from_config(
      nlohmann::json::parse(R"({"model_type": "t5", "vocab_size": 31,
          "d_model": 8, "d_kv": 2, "d_ff": 8, "num_layers": 1, "num_heads": 4,
          "decoder_start_token_id": 0})"),
      {.architecture = "T5ForConditionalGeneration"});
  expect_error([&] { t5->drop_layers({}); }, {"model.layer_drop", "T5"});
  const auto longformer = from_config(
      nlohmann::json::parse(R"({"model_type": "longformer", "vocab_size": 37,
          "hidden_size": 12, "intermediate_size": 18, "num_hidden_layers": 2,
          "num_attention_heads": 6, "max_position_embeddings": 16,
          "attention_window": 4})"),
      {.architecture = "LongformerForSequenceClassification"});
  longformer->drop_layers({});
  expect_error(
      [&] { longformer->drop_tokens({}); }, {"model.token_drop", "windows"});
}

} // namespace tessera::zoo::step_drops_test
