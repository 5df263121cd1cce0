// SPDX-License-Identifier: Apache-2.0
#pragma once
// The models of the parity tests, each with a batch and a loss.
#include "engine/parity.h"
#include "engine/stranger_models.h"

#include "../../examples/wrap_existing_module/text_model.h"
#include "zoo/small_bert.h"

namespace tessera::tests {

namespace F = torch::nn::functional;

inline torch::Tensor rows(
    const torch::Tensor& batch,
    int64_t part,
    int64_t parts) {
  return batch.chunk(parts)[part];
}

inline torch::Tensor cross_entropy(
    const torch::Tensor& logits,
    const torch::Tensor& labels) {
  return F::cross_entropy(
      logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}));
}

template <typename Model>
torch::Tensor next_token_loss(Model& model, const torch::Tensor& tokens) {
  const auto time = tokens.size(1) - 1;
  return cross_entropy(
      model->forward(tokens.narrow(1, 0, time)), tokens.narrow(1, 1, time));
}

inline const Subject<TextModel> kText{
    [] {
      return TextModel(TextModelOptions{31, 12, 2, 2, 8});
    },
    [](TextModel& model, int64_t part, int64_t parts) {
      return next_token_loss(
          model, rows(torch::randint(31, {12, 9}), part, parts));
    }};

inline const Subject<strangers::Gpt> kGpt{
    [] { return strangers::Gpt(29, 12, 3, 8); },
    [](strangers::Gpt& model, int64_t part, int64_t parts) {
      return next_token_loss(
          model, rows(torch::randint(29, {12, 9}), part, parts));
    }};

inline const Subject<strangers::ResNet> kResNet{
    [] { return strangers::ResNet(5); },
    [](strangers::ResNet& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 3, 10, 10}), part, parts);
      return cross_entropy(
          model->forward(x), torch::arange(x.size(0)).remainder(5));
    }};

inline const Subject<strangers::CellDecoder> kCells{
    [] { return strangers::CellDecoder(5, 11); },
    [](strangers::CellDecoder& model, int64_t part, int64_t parts) {
      const auto x =
          rows(torch::randn({12, 6, 5}), part, parts).transpose(0, 1);
      return F::mse_loss(model->forward(x), x.flip(0));
    }};

inline const Subject<strangers::BiLstmModel> kBiLstm{
    [] { return strangers::BiLstmModel(23, 10); },
    [](strangers::BiLstmModel& model, int64_t part, int64_t parts) {
      const auto tokens = rows(torch::randint(23, {12, 7}), part, parts);
      return cross_entropy(model->forward(tokens), tokens.flip(1));
    }};

inline const Subject<strangers::Translator> kTransformer{
    [] { return strangers::Translator(19, 12); },
    [](strangers::Translator& model, int64_t part, int64_t parts) {
      const auto from = rows(torch::randint(19, {12, 6}), part, parts).t();
      const auto to = from.flip(0);
      return cross_entropy(model->forward(from, to), to);
    }};

inline const Subject<strangers::UNet> kUNet{
    [] { return strangers::UNet(); },
    [](strangers::UNet& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 2, 8, 8}), part, parts);
      return F::mse_loss(model->forward(x), x.sum(1, true).tanh());
    }};

inline const Subject<strangers::Vae> kVae{
    [] { return strangers::Vae(); },
    [](strangers::Vae& model, int64_t part, int64_t parts) {
      return model->loss(rows(torch::rand({12, 20}), part, parts));
    }};

inline const Subject<strangers::SharedBlock> kSharedSubject{
    [] { return strangers::SharedBlock(); },
    [](strangers::SharedBlock& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 9}), part, parts);
      return model->forward(x).square().mean();
    }};

inline const Subject<strangers::OddSizes> kOddSizes{
    [] { return strangers::OddSizes(); },
    [](strangers::OddSizes& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 13}), part, parts);
      return model->forward(x);
    }};

inline const Subject<strangers::MixedPrecision> kMixed{
    [] { return strangers::MixedPrecision(); },
    [](strangers::MixedPrecision& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 8}), part, parts);
      return model->forward(x).square().mean();
    }};

inline const Subject<strangers::SharedBlock> kDoubleSubject{
    [] {
      strangers::SharedBlock model;
      model->to(torch::kDouble);
      return model;
    },
    [](strangers::SharedBlock& model, int64_t part, int64_t parts) {
      const auto x = rows(torch::randn({12, 9}, torch::kDouble), part, parts);
      return model->forward(x).square().mean();
    }};

/// A frozen embedding and layer, and frozen biases inside every block.
inline const Subject<strangers::Gpt> kFrozen{
    [] {
      strangers::Gpt model(29, 12, 3, 8);
      model->wpe->weight.set_requires_grad(false);
      for (auto& item : model->h->named_parameters()) {
        if (item.key().find("bias") != std::string::npos ||
            item.key().rfind("1.", 0) == 0) {
          item.value().set_requires_grad(false);
        }
      }
      return model;
    },
    kGpt.loss};

inline const Subject<std::shared_ptr<zoo::Model>> kBert{
    [] {
      return small_bert(
          {{"vocab_size", 41},
           {"hidden_size", 16},
           {"num_hidden_layers", 2},
           {"num_attention_heads", 2},
           {"intermediate_size", 24},
           {"max_position_embeddings", 12}});
    },
    [](std::shared_ptr<zoo::Model>& model, int64_t part, int64_t parts) {
      const auto ids = rows(torch::randint(41, {12, 9}), part, parts);
      zoo::ModelInput input;
      input.input_ids = ids;
      input.attention_mask = torch::ones_like(ids);
      input.attention_mask.narrow(1, 7, 2).fill_(0);
      return cross_entropy(model->forward(input).logits, ids.select(1, 0) % 2);
    }};

/// A subject with its type erased.
struct ParityCase {
  std::string name;
  std::function<void(World&, const ParityOptions&)> run;
};

template <typename Model>
ParityCase parity_case(const std::string& name, const Subject<Model>& subject) {
  return {name, [=](World& world, const ParityOptions& options) {
            expect_parity(world, subject, options, name);
          }};
}

/// Names a test by model and number of ranks.
inline std::string name_of_case(
    const ::testing::TestParamInfo<std::tuple<ParityCase, int>>& info) {
  return std::get<0>(info.param).name + "On" +
         std::to_string(std::get<1>(info.param));
}

} // namespace tessera::tests
