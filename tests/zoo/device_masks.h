// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tokens of a batch see on a device: of packed documents each its own, of
// pairs of answers (DPO) each its own prompt.

#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/preference_loss.h"
#include "tessera/zoo/adapters/lora.h"
#include "zoo/device_comparison.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace tessera::zoo::device_masks {

inline constexpr int64_t kRows = 2;
inline constexpr int64_t kLength = 16;

struct Document {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

/// Of different lengths; the first row ends with padding.
inline const std::vector<Document>& documents() {
  static const std::vector<Document> all{
      {0, 0, 5}, {0, 5, 8}, {1, 0, 9}, {1, 9, 7}};
  return all;
}

/// They have ids and positions of their own, and no label for their first
/// tokens; padding is a document without labels.
inline ModelInput packed_documents(c10::Device device) {
  torch::manual_seed(7);
  const at::Tensor ids = torch::randint(3, 29, {kRows, kLength}, torch::kLong);
  const at::Tensor positions = torch::zeros({kRows, kLength}, torch::kLong);
  const at::Tensor numbers = torch::zeros({kRows, kLength}, torch::kLong);
  const at::Tensor labels = torch::full({kRows, kLength}, -100, torch::kLong);
  int64_t number = 0;
  for (const Document& document : documents()) {
    const auto own = [&](const at::Tensor& all) {
      return all[document.row].narrow(0, document.begin, document.length);
    };
    own(positions).copy_(torch::arange(document.length));
    own(numbers).fill_(++number);
    own(labels).copy_(own(ids));
    labels[document.row][document.begin] = -100;
  }
  ModelInput input;
  input.input_ids = ids;
  input.position_ids = positions;
  input.labels = labels;
  input.others["document_ids"] = numbers;
  return input.with_tensors(
      [&](const at::Tensor& tensor) { return tensor.to(device); });
}

/// The logits of packed documents are those of each alone, in float32 and in
/// the types that fused attention takes on CUDA.
inline void expect_documents_apart(World& world) {
  const at::NoGradGuard no_grad;
  for (const char* config :
       {device_comparison::kGroupedLlama, device_comparison::kGpt}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto model =
          device_comparison::model_on(world.device(), config, dtype);
      ModelInput packed = packed_documents(world.device());
      packed.labels = at::Tensor();
      const at::Tensor together = model->forward(packed).logits;
      packed.others.clear();
      const at::Tensor mixed = model->forward(packed).logits;
      // A kernel of another length rounds otherwise: in bfloat16 to 2^-9 of
      // each result of three layers.
      const double tolerance = dtype == at::kFloat  ? 1e-5
                               : dtype == at::kHalf ? 1e-2
                                                    : 5e-2;
      double of_mixed = 0;
      for (const Document& document : documents()) {
        const auto own = [&](const at::Tensor& all) {
          return all.narrow(0, document.row, 1)
              .narrow(1, document.begin, document.length);
        };
        ModelInput alone;
        alone.input_ids = own(packed.input_ids);
        const at::Tensor expected = model->forward(alone).logits;
        EXPECT_LT(
            device_comparison::difference_of(own(together), expected),
            tolerance)
            << dtype;
        of_mixed = std::max(
            of_mixed, device_comparison::difference_of(own(mixed), expected));
      }
      EXPECT_GT(of_mixed, 5 * tolerance) << dtype;
    }
  }
}

/// The mean over the documents' labels, each document by itself.
inline at::Tensor loss_of_each_alone(Model& model, const ModelInput& packed) {
  at::Tensor sum = torch::zeros({});
  int64_t labels = 0;
  for (const Document& document : documents()) {
    ModelInput alone;
    alone.input_ids = packed.input_ids.narrow(0, document.row, 1)
                          .narrow(1, document.begin, document.length);
    alone.labels = alone.input_ids;
    sum = sum + model.forward(alone).loss * (document.length - 1);
    labels += document.length - 1;
  }
  return sum / labels;
}

/// Loss and gradients of packed documents are those that the CPU has of each
/// alone.
inline void expect_gradients_of_each_alone(World& world) {
  for (const char* config :
       {device_comparison::kGroupedLlama, device_comparison::kGpt}) {
    const auto plain = device_comparison::model_on(at::kCPU, config);
    const auto model = device_comparison::model_on(world.device(), config);
    device_comparison::expect_close(
        device_comparison::gradients_of(
            *model, model->forward(packed_documents(world.device())).loss),
        device_comparison::gradients_of(
            *plain, loss_of_each_alone(*plain, packed_documents(at::kCPU))));
  }
}

/// Three pairs, of different lengths. @param packs two of them in one row.
inline ModelInput preference_batch(c10::Device device, bool packs) {
  torch::manual_seed(9);
  std::vector<tasks::PreferencePair> pairs;
  const auto answered = [](const at::Tensor& prompt, int64_t length) {
    const at::Tensor tokens =
        at::cat({prompt, torch::randint(3, 29, {length}, torch::kLong)});
    const auto* first = tokens.const_data_ptr<int64_t>();
    return tasks::SupervisedText{
        .tokens = {first, first + tokens.numel()},
        .answers = {{prompt.numel(), tokens.numel()}}};
  };
  for (const auto& [prompt, chosen, rejected] :
       {std::tuple(3, 4, 2), std::tuple(2, 3, 5), std::tuple(4, 5, 6)}) {
    const at::Tensor tokens = torch::randint(3, 29, {prompt}, torch::kLong);
    pairs.push_back({answered(tokens, chosen), answered(tokens, rejected)});
  }
  const tasks::PreferenceBatches data(
      pairs,
      {.is_packed = packs, .max_length = 32, .padding_token = 0},
      /*seed=*/0);
  std::vector<size_t> examples;
  for (size_t i = 0; i < data.size(); ++i) {
    examples.push_back(i);
  }
  EXPECT_EQ(data.size(), packs ? 2U : 3U);
  return data.make(examples, /*epoch=*/0, /*loss_only=*/true)
      .with_tensors(
          [&](const at::Tensor& tensor) { return tensor.to(device); });
}

/// An adapter against its base: losses of padded pairs and of packed ones, and
/// gradients, are those of padded ones on the CPU.
inline void expect_preferences_of_the_cpu(World& world) {
  for (const auto kind :
       {tasks::PreferenceLossKind::kSigmoid, tasks::PreferenceLossKind::kIpo}) {
    const auto gradients_of = [&](c10::Device device, bool packs) {
      const auto model =
          device_comparison::model_on(device, device_comparison::kGroupedLlama);
      LoraConfig adapter{.r = 3, .alpha = 6};
      adapter.target_modules.names = {"q_proj", "v_proj", "down_proj"};
      adapter.init = LoraInit::kRandom;
      apply_lora(*model, adapter, /*seed=*/1);
      tasks::PreferenceLoss preference({.loss = kind, .beta = 0.3}, nullptr);
      return device_comparison::gradients_of(
          *model, preference.loss(*model, preference_batch(device, packs)));
    };
    const auto expected = gradients_of(at::kCPU, /*packs=*/false);
    for (const bool packs : {false, true}) {
      device_comparison::expect_close(
          gradients_of(world.device(), packs), expected);
    }
  }
}

} // namespace tessera::zoo::device_masks
