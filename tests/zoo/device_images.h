// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images on a device: their patches, and blended ones with their labels.

#include "support/motion.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/tasks/image_batches.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "zoo/device_comparison.h"
#include "zoo/image_files.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo::device_images {

struct PatchCase {
  PatchEmbeddingOptions options;
  ImageSize image;
};

/// Of the size that positions are for, of another one, padded, and with a norm
/// and fixed positions.
inline std::vector<PatchCase> patch_cases() {
  const PatchEmbeddingOptions learned{
      .image = {12, 20}, .patch = {4, 4}, .features = 24, .deviation = 0.3};
  PatchEmbeddingOptions padded = learned;
  padded.pads = true;
  padded.class_token = false;
  padded.positions = PatchPositions::kNone;
  padded.norm = NormOptions{.features = 24};
  PatchEmbeddingOptions fixed = learned;
  fixed.positions = PatchPositions::kFixed;
  fixed.mask_token = true;
  return {
      {learned, {12, 20}},
      {learned, {16, 24}},
      {padded, {10, 18}},
      {fixed, {12, 20}}};
}

/// The same by LibTorch's functions, of the parameters of `embedding`.
/// @param mask undefined, or [rows, patches] bool.
inline at::Tensor plain_tokens(
    torch::nn::Module& embedding,
    const PatchCase& patch,
    const at::Tensor& pixels,
    const at::Tensor& mask) {
  namespace functional = torch::nn::functional;
  const PatchEmbeddingOptions& options = patch.options;
  const auto all = embedding.named_parameters();
  const ImageSize grid = options.grid(patch.image);
  const at::Tensor padded = functional::pad(
      pixels,
      functional::PadFuncOptions(
          {0,
           grid.width * options.patch.width - patch.image.width,
           0,
           grid.height * options.patch.height - patch.image.height}));
  // A row of each patch: channels, then rows and columns.
  const at::Tensor rows =
      functional::unfold(
          padded,
          functional::UnfoldFuncOptions(
              {options.patch.height, options.patch.width})
              .stride({options.patch.height, options.patch.width}))
          .transpose(1, 2);
  at::Tensor tokens = rows.matmul(all["projection.weight"].flatten(1).t()) +
                      all["projection.bias"];
  if (options.norm) {
    tokens = at::layer_norm(
        tokens,
        {options.features},
        all["norm.weight"],
        all["norm.bias"],
        options.norm->eps);
  }
  if (mask.defined()) {
    tokens = at::where(mask.unsqueeze(-1), all["mask_token"], tokens);
  }
  if (options.class_token) {
    tokens = at::cat(
        {all["class_token"].expand({pixels.size(0), -1, -1}), tokens}, 1);
  }
  if (options.positions == PatchPositions::kNone) {
    return tokens;
  }
  const at::Tensor positions = all["positions"];
  const ImageSize own = options.grid(options.image);
  const at::Tensor map = positions.slice(1, 1).transpose(1, 2).unflatten(
      2, {own.height, own.width});
  const at::Tensor resized = functional::interpolate(
      map,
      functional::InterpolateFuncOptions()
          .size(std::vector<int64_t>{grid.height, grid.width})
          .mode(torch::kBicubic)
          .align_corners(false));
  return tokens +
         at::cat(
             {positions.slice(1, 0, 1), resized.flatten(2).transpose(1, 2)}, 1);
}

/// Tokens and gradients are those of plain_tokens() on the CPU.
inline void expect_patches_of_the_cpu(World& world) {
  for (const PatchCase& patch : patch_cases()) {
    const auto made_on = [&](c10::Device device) {
      torch::manual_seed(3);
      PatchEmbedding embedding(patch.options);
      move_module(*embedding, device);
      return embedding;
    };
    PatchEmbedding plain = made_on(at::kCPU);
    PatchEmbedding embedding = made_on(world.device());
    const at::Tensor pixels =
        torch::randn({3, 3, patch.image.height, patch.image.width});
    const int64_t count = patch.options.grid(patch.image).area();
    at::Tensor mask;
    at::Tensor there;
    if (patch.options.mask_token) {
      mask = torch::arange(3 * count).remainder(3).eq(0).view({3, count});
      there = mask.to(world.device());
    }
    const at::Tensor expected = plain_tokens(*plain, patch, pixels, mask);
    const at::Tensor found =
        embedding->forward(pixels.to(world.device()), there);
    const at::Tensor weights = torch::randn(expected.sizes());
    EXPECT_LT(
        device_comparison::difference_of(found.detach(), expected.detach()),
        device_comparison::kFloat32Tolerance);
    device_comparison::expect_close(
        device_comparison::gradients_of(
            *embedding, (found * weights.to(world.device())).square().mean()),
        device_comparison::gradients_of(
            *plain, (expected * weights).square().mean()));
  }
}

/// Batches of a folder's images, each blended with another one.
class MixedImages {
 public:
  /// @param model a classifier, which says how large images are.
  MixedImages(const std::filesystem::path& folder, Model& model)
      : head_(model.head()),
        batches_(
            tasks::ImageFolder::read(folder, /*has_classes=*/true),
            *head_,
            [] {
              tasks::ImageOptions options;
              options.mixup = 0.8;
              return options;
            }(),
            {}) {}

  /// On the device, as runs bring them there.
  ModelInput batch(int64_t step, c10::Device device) const {
    std::vector<size_t> examples;
    for (size_t i = 0; i < kImages; ++i) {
      examples.push_back((i + static_cast<size_t>(step) * kImages) % kFolder);
    }
    return batches_.make(examples, /*epoch=*/0, /*loss_only=*/false)
        .with_tensors([&](const at::Tensor& tensor) {
          return runtime::to_device(tensor, device);
        });
  }

  static constexpr size_t kImages = 6; ///< of a batch
  static constexpr size_t kFolder = 16;

 private:
  std::shared_ptr<const Head> head_;
  tasks::ImageBatches batches_;
};

inline constexpr const char* kVit = R"({"model_type": "vit",
    "architectures": ["ViTForImageClassification"], "image_size": 16,
    "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 32, "num_labels": 2,
    "problem_type": "single_label_classification", "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})";

/// A ViT of an engine on the device, and one of plain LibTorch on the CPU,
/// trained on blended images.
/// @param folder where images are written.
inline void expect_training_of_the_cpu(
    World& world,
    const std::filesystem::path& folder) {
  constexpr int64_t kSteps = 4;
  constexpr double kLearningRate = 0.05;
  if (world.rank() == 0) {
    write_tinted_images(folder, MixedImages::kFolder / 2, 0);
  }
  world.new_communicator("images")->barrier();
  const auto plain = device_comparison::model_on(at::kCPU, kVit);
  const auto model = device_comparison::model_on(world.device(), kVit);
  const MixedImages images(folder, *plain);
  torch::optim::SGD sgd(plain->parameters(), kLearningRate);
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.rule = SgdOptions{};
  options.optimizer.lr = kLearningRate;
  options.optimizer.weight_decay = 0;
  Engine engine(world, model, options);
  // Float32 sums in another order, over the updates.
  constexpr double kTolerance = 1e-4;
  std::map<std::string, at::Tensor> start;
  for (const auto& item : plain->named_parameters()) {
    start[item.key()] = item.value().detach().clone();
  }
  double changed = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const ModelInput batch = images.batch(step, at::kCPU);
    const at::Tensor expected = plain->forward(batch).loss;
    const at::Tensor loss =
        model->forward(images.batch(step, world.device())).loss;
    EXPECT_NEAR(
        loss.item<double>(),
        expected.item<double>(),
        kTolerance * expected.item<double>());
    {
      // Labels of one class are others.
      ModelInput hard = batch;
      hard.labels = batch.labels.argmax(1);
      const at::NoGradGuard no_grad;
      changed = std::max(
          changed,
          std::abs(
              plain->forward(hard).loss.item<double>() -
              expected.item<double>()));
    }
    sgd.zero_grad();
    expected.backward();
    sgd.step();
    engine.backward(loss);
    engine.step();
  }
  EXPECT_GT(changed, 100 * kTolerance);
  const auto weights = plain->named_parameters();
  double largest_motion = 0;
  for (const auto& [name, value] : start) {
    largest_motion =
        std::max(largest_motion, tests::distance_of(weights[name], value));
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        tests::expect_close_by_motion(
            start.at(name),
            weights[name].detach(),
            value.cpu(),
            kTolerance,
            name,
            1e-2 * largest_motion);
      });
}

} // namespace tessera::zoo::device_images
