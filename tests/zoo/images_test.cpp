// SPDX-License-Identifier: Apache-2.0
// Models of images against transformers, MoCo v3 against formulas: hidden
// states, logits, loss, gradients, dropout, and the bytes of a folder that is
// saved again.

#include "support/expect_error.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "zoo/model_fixture.h"

#include <cmath>

namespace tessera::zoo::images_test {
namespace {

class Images : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(Images, EqualTransformers) {
  expect_equals_transformers(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Images,
    ::testing::Values(
        "mae",
        "mae_base",
        "mae_wide",
        "moco",
        "swin_base",
        "swin_classifier",
        "swin_masked",
        "vit_base",
        "vit_classifier",
        "vit_labels",
        "vit_masked",
        "vit_regression"),
    [](const auto& one) { return std::string(one.param); });

// Same probabilities in the same places: the generator gives both the same
// numbers, for LibTorch's operators.
TEST(Image, DropsWhatTransformersDrops) {
  runtime::use_fused_operators(false);
  for (const char* name : {"swin_classifier", "vit_classifier"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    model->train();
    torch::manual_seed(7);
    expect_near(
        model->forward(reference.input()).loss,
        reference.tensors("train.").at("loss"));
  }
  runtime::use_fused_operators(true);
}

TEST(Image, RecomputesItsLayers) {
  for (const char* name :
       {"mae", "moco", "swin_classifier", "vit_classifier"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    model->recompute({.layers = model->stage().count()});
    model->forward(reference.input()).loss.backward();
    expect_gradients(reference, *model);
  }
}

// A base model's checkpoint makes every head, fresh; a classifier's has no
// pooler and no mask token.
TEST(Image, TakesCheckpointsOfOtherHeads) {
  const ModelFixture base("vit_base");
  ModelInput input = base.input();
  const torch::Tensor last = base.tensors("out.").at("hidden_states.2");
  const auto classifier = from_pretrained(
      base.folder(), {.architecture = "ViTForImageClassification"});
  expect_near(classifier->forward(input).hidden_states.back(), last);
  const ModelFixture masked("vit_masked");
  const auto pooled =
      from_pretrained(masked.folder(), {.architecture = "ViTModel"});
  input = masked.input();
  input.others.clear();
  // None is made up.
  EXPECT_FALSE(pooled->forward(input).pooler_output.defined());
  EXPECT_TRUE(pooled->forward(input).last_hidden_state.defined());
}

// A classifier of other classes than the checkpoint's.
TEST(Image, StartsAHeadOfOtherClassesFresh) {
  const ModelFixture reference("vit_classifier");
  FromPretrainedOptions options;
  options.config["id2label"] = {{"0", "a"}, {"1", "b"}};
  expect_error(
      [&] { from_pretrained(reference.folder(), options); },
      {"classifier", "[2]"});
  options.fresh_heads = true;
  torch::manual_seed(3);
  const auto model = from_pretrained(reference.folder(), options);
  const ModelInput input = [&] {
    ModelInput one = reference.input();
    one.labels = at::Tensor();
    return one;
  }();
  const ModelOutput output = model->forward(input);
  EXPECT_EQ(output.logits.size(1), 2);
  expect_near(
      output.hidden_states.back(),
      reference.tensors("out.").at("hidden_states.2"));
}

TEST(Image, KeepsThePreprocessorsConfiguration) {
  const ModelFixture reference("vit_base");
  const auto model = from_pretrained(reference.folder());
  const TemporaryFolder folder;
  const std::string text = R"({"image_mean": [0.5, 0.5, 0.5]})";
  runtime::write_file_atomically(
      folder.path() / "preprocessor_config.json", text);
  save_pretrained(*model, folder.path() / "model", folder.path());
  EXPECT_EQ(
      runtime::read_text_file(
          folder.path() / "model" / "preprocessor_config.json"),
      text);
}

TEST(Image, NamesWhatIsWrong) {
  const ModelFixture reference("vit_classifier"); // 12 x 20, patches of 4 x 4
  const auto model = from_pretrained(reference.folder());
  const auto with = [&](at::IntArrayRef sizes, bool interpolate = false) {
    ModelInput input;
    input.pixel_values = torch::zeros(sizes);
    if (interpolate) {
      input.others["interpolate_pos_encoding"] = torch::ones({1});
    }
    return [&model, input] { model->forward(input); };
  };
  expect_error(with({1, 1, 12, 20}), {"1 channels", "images with 3"});
  expect_error(with({1, 3, 20, 12}), {"20 x 12", "takes 12 x 20"});
  expect_error(with({3, 12, 20}), {"[3, 12, 20]", "batch"});
  expect_error(with({0, 3, 12, 20}), {"not empty"});
  expect_error(with({1, 3, 13, 20}, true), {"13 x 20", "4 x 4", "crop"});
  ModelInput input = reference.input();
  input.others["bool_masked_pos"] = torch::ones({3, 15});
  expect_error([&] { model->forward(input); }, {"'bool_masked_pos'"});
  input = {};
  expect_error([&] { model->forward(input); }, {"pixel_values are missing"});

  const nlohmann::json config = read_json(reference.folder() / "config.json");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = config;
    other[key] = value;
    return [other] { from_config(other); };
  };
  expect_error(changed("patch_size", 7), {"7 x 7", "12 x 20"});
  expect_error(changed("patch_size", 0), {"'patch_size'", "from 1"});
  expect_error(changed("image_size", {1, 2, 3}), {"'image_size'", "[1,2,3]"});
  expect_error(changed("image_size", 1 << 20), {"'image_size'", "65536"});
  expect_error(changed("num_channels", 1 << 20), {"'num_channels'", "1024"});
  expect_error(changed("hidden_act", "gale"), {"'gale'"});
}

TEST(Image, NamesWrongMasks) {
  const ModelFixture reference("vit_masked");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  input.others["bool_masked_pos"] = torch::ones({3, 4});
  expect_error([&] { model->forward(input); }, {"[3, 4]", "[3, 16]"});
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["encoder_stride"] = 2;
  const auto smaller = from_config(config);
  expect_error(
      [&] { smaller->forward(reference.input()); }, {"encoder_stride"});
}

// Old versions saved the numbers of the bias table's rows.
TEST(Image, TakesOldCheckpointsOfSwin) {
  const ModelFixture reference("swin_masked");
  const auto file =
      runtime::SafetensorsFile::open(reference.folder() / "model.safetensors");
  NamedTensors old;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    old.emplace(entry.name, fixture_tensor(file, entry.name));
  }
  old["swin.encoder.layers.0.blocks.1.attention.self."
      "relative_position_index"] = torch::zeros({16, 16}, torch::kLong);
  const TemporaryFolder folder;
  write_named_tensors(folder.path() / "model.safetensors", old);
  std::filesystem::copy_file(
      reference.folder() / "config.json", folder.path() / "config.json");
  const auto model = from_pretrained(folder.path());
  expect_outputs(reference, model->forward(reference.input()));
}

TEST(Image, NamesWhatIsWrongWithSwin) {
  const ModelFixture reference("swin_classifier"); // windows of 4 x 4 patches
  const auto model = from_pretrained(reference.folder());
  ModelInput input;
  input.pixel_values = torch::zeros({1, 3, 20, 9});
  expect_error([&] { model->forward(input); }, {"5 x 3", "window of 4 x 4"});
  const nlohmann::json config = read_json(reference.folder() / "config.json");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = config;
    other[key] = value;
    return [other] { from_config(other); };
  };
  expect_error(changed("depths", 3), {"'depths'", "list"});
  expect_error(changed("depths", {2, 0}), {"'depths'", "from 1"});
  expect_error(changed("num_heads", {3}), {"'num_heads'", "the same length"});
  expect_error(changed("num_heads", {5, 5}), {"12 features", "5 heads"});
  expect_error(changed("embed_dim", 1 << 27), {"embed_dim", "16777216"});
  expect_error(changed("window_size", 1 << 20), {"'window_size'", "1024"});
}

TEST(Image, NamesWhatIsWrongWithNoise) {
  const ModelFixture reference("mae");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  input.others["noise"] = torch::zeros({3, 4});
  expect_error([&] { model->forward(input); }, {"[3, 4]", "[3, 9]"});
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["mask_ratio"] = 1;
  expect_error([&] { from_config(config); }, {"mask_ratio"});
}

// Without noise the model draws some: as many patches are seen, others each
// time.
TEST(Image, DrawsWhichPatchesAreSeen) {
  const ModelFixture reference("mae");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  input.others.erase("noise");
  torch::manual_seed(5);
  const torch::Tensor first = model->forward(input).others.at("mask");
  const torch::Tensor second = model->forward(input).others.at("mask");
  EXPECT_TRUE(first.sum(1).eq(6).all().item<bool>());
  EXPECT_FALSE(first.equal(second));
  // Positions of a fresh model are sines and cosines, and stay so.
  const auto fresh = from_config(read_json(reference.folder() / "config.json"));
  const auto parameters = fresh->named_parameters();
  const torch::Tensor& positions = parameters["embeddings.positions"];
  EXPECT_FALSE(positions.requires_grad());
  EXPECT_EQ(positions.select(1, 0).abs().sum().item<double>(), 0);
  // Patch 5: column 2, row 1.
  EXPECT_NEAR(positions[0][6][0].item<double>(), std::sin(2.0), 1e-6);
  EXPECT_NEAR(positions[0][6][12].item<double>(), std::sin(1.0), 1e-6);
}

} // namespace tessera::zoo::images_test
