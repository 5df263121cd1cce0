// SPDX-License-Identifier: Apache-2.0
// Folders of images: what is read of them, and batches of their images.
#include "tessera/tasks/image_folder.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/image_batches.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/image_files.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace tessera::tasks::image_folder_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 16;

zoo::PatchEmbeddingOptions small_images(int64_t channels = 3) {
  return {
      .channels = channels,
      .image = {kSide, kSide},
      .patch = {4, 4},
      .features = 8};
}

zoo::ClassHead class_head() {
  return {zoo::HeadInputs{.images = small_images()}, zoo::ClassifierOptions{2}};
}

class ImageFolders : public ::testing::Test {
 protected:
  fs::path train() const {
    return folder_ / "train";
  }

  ImageBatches batches(
      const zoo::Head& head,
      const ImageOptions& options = {},
      const zoo::ExampleOptions& examples = {}) const {
    return {
        ImageFolder::read(train(), head.labels() == zoo::HeadLabels::kClass),
        head,
        options,
        examples};
  }

  TemporaryFolder folder_;
};

at::Tensor pixels_of(
    const ImageBatches& data,
    const std::vector<size_t>& examples,
    int64_t epoch) {
  return data.make(examples, epoch, /*loss_only=*/true).pixel_values;
}

} // namespace

TEST_F(ImageFolders, HaveAClassPerSubfolder) {
  zoo::write_tinted_images(train(), 3, 0);
  fs::create_directories(train() / "red" / "more");
  fs::rename(train() / "red" / "2.png", train() / "red" / "more" / "2.PNG");
  std::ofstream(train() / "red" / "notes.txt") << "not an image";
  std::ofstream(train() / "LICENSE") << "neither";
  fs::create_directories(train() / ".cache");
  ImageFolder folder = ImageFolder::read(train(), true);
  EXPECT_EQ(folder.classes, (std::vector<std::string>{"blue", "red"}));
  ASSERT_EQ(folder.images.size(), 6);
  EXPECT_EQ(folder.images[2].path, train() / "blue" / "2.png");
  EXPECT_EQ(folder.images[2].label, 0);
  EXPECT_EQ(folder.images[5].path, train() / "red" / "more" / "2.PNG");
  EXPECT_EQ(folder.images[5].label, 1);
  folder.check({}, true);
  folder.relabel({"red", "green", "blue"});
  EXPECT_EQ(folder.images[2].label, 2);
  EXPECT_EQ(folder.images[5].label, 0);
  expect_error(
      [&] {
        folder.relabel({"red", "green"});
      },
      {"train/blue'", "no class of this name", "\"red\"", "\"green\""});
  EXPECT_EQ(ImageFolder::read(train() / "red", false).images.size(), 3);
}

TEST_F(ImageFolders, IdsOfClassesAreTakenForThemAndTold) {
  zoo::write_tinted_images(train(), 2, 0);
  fs::rename(train() / "red", train() / "0");
  fs::rename(train() / "blue", train() / "1");
  ImageFolder folder = ImageFolder::read(train(), true);
  testing::internal::CaptureStderr();
  folder.relabel({"red", "blue"});
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      logged.find(
          R"(train': labels 0, 1 are taken for the ids of the classes ["red","blue"])"),
      std::string::npos)
      << logged;
  testing::internal::CaptureStderr();
  folder.relabel({"red", "blue"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ImageFolders, AreRefusedWithWhatIsMissing) {
  expect_error([&] { ImageFolder::read(train(), true); }, {"not a folder"});
  fs::create_directories(train());
  expect_error([&] { ImageFolder::read(train(), true); }, {"no subfolders"});
  expect_error([&] { ImageFolder::read(train(), false); }, {"no images"});
  zoo::write_tinted_images(train(), 1, 0);
  fs::create_directories(train() / "green");
  expect_error(
      [&] { ImageFolder::read(train(), true); },
      {"train/green' has no images"});
  fs::remove(train() / "green");
  zoo::write_png(train() / "lost.png", zoo::tinted_image({4, 4}, 0, 0));
  expect_error(
      [&] { ImageFolder::read(train(), true); },
      {"lost.png' lies outside of the subfolders"});
}

TEST_F(ImageFolders, BadImagesAreRefusedOrSkippedAndCounted) {
  zoo::write_tinted_images(train(), 4, 0);
  std::ofstream(train() / "red" / "1.png", std::ios::binary)
      << "\x89PNG broken";
  std::ofstream(train() / "red" / "x.webp") << "RIFF....WEBP";
  ImageFolder folder = ImageFolder::read(train(), true);
  EXPECT_EQ(folder.images.size(), 9);
  expect_error(
      [&] { folder.check({}, true); },
      {"red/1.png'", "2 of 9 images are bad", "data.skip_bad_images"});
  testing::internal::CaptureStderr();
  folder.check({.skip_bad_images = true}, true);
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("2 of 9 images are bad"),
      std::string::npos);
  EXPECT_EQ(folder.images.size(), 7);
  for (const auto& image : folder.images) {
    EXPECT_NE(image.path, train() / "red" / "1.png");
  }
  // Pixels that are broken behind a sound header.
  std::string bytes = runtime::read_text_file(train() / "blue" / "0.png");
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  std::ofstream(train() / "blue" / "0.png", std::ios::binary) << bytes;
  EXPECT_NO_THROW(folder.check({}, true));
  expect_error(
      [&] { folder.check({.check = ImageCheck::kPixels}, true); },
      {"blue/0.png'", "1 of 7"});
}

TEST_F(ImageFolders, AreSplitByClassAndName) {
  zoo::write_tinted_images(train(), 10, 0);
  const ImageFolder all = ImageFolder::read(train(), true);
  ImageFolder kept = all;
  const ImageFolder heldout = kept.take_heldout(0.3);
  EXPECT_EQ(heldout.images.size(), 6);
  EXPECT_EQ(kept.images.size(), 14);
  std::set<fs::path> names;
  int64_t red = 0;
  for (const auto& image : heldout.images) {
    names.insert(image.path);
    red += image.label;
  }
  EXPECT_EQ(red, 3);
  for (const auto& image : kept.images) {
    EXPECT_FALSE(names.contains(image.path));
  }
  // Where the folder lies does not matter.
  fs::rename(train(), folder_ / "moved");
  ImageFolder moved = ImageFolder::read(folder_ / "moved", true);
  const ImageFolder again = moved.take_heldout(0.3);
  for (size_t i = 0; i < again.images.size(); ++i) {
    EXPECT_EQ(
        again.images[i].path.lexically_relative(folder_ / "moved"),
        heldout.images[i].path.lexically_relative(train()));
  }
}

TEST_F(ImageFolders, ViewsFollowFromSeedEpochAndExampleAlone) {
  zoo::write_tinted_images(train(), 6, 0);
  const zoo::ClassHead head = class_head();
  const ImageBatches data = batches(head);
  const at::Tensor all = pixels_of(data, {0, 1, 2, 3, 4, 5}, 1);
  EXPECT_EQ(all.sizes(), (std::vector<int64_t>{6, 3, kSide, kSide}));
  EXPECT_EQ(all.scalar_type(), at::kFloat);
  EXPECT_TRUE(all.narrow(0, 3, 2).equal(pixels_of(data, {3, 4}, 1)));
  EXPECT_FALSE(all.equal(pixels_of(data, {0, 1, 2, 3, 4, 5}, 2)));
  const ImageBatches other = batches(head, {}, {.seed = 1});
  EXPECT_FALSE(all.equal(pixels_of(other, {0, 1, 2, 3, 4, 5}, 1)));
  // The same file twice: other examples, other views.
  fs::copy_file(
      train() / "blue" / "0.png",
      train() / "blue" / "1.png",
      fs::copy_options::overwrite_existing);
  const at::Tensor two = pixels_of(data, {0, 1}, 1);
  EXPECT_FALSE(two[0].equal(two[1]));
  // Scored images are the same each time, and nothing of them is random.
  const at::Tensor scored = pixels_of(data, {0, 1}, zoo::kScoredEpoch);
  EXPECT_TRUE(scored[0].equal(scored[1]));
  const ImageBatches still =
      batches(head, {.views = {.recipe = ViewRecipe::kNone}});
  EXPECT_TRUE(scored.equal(pixels_of(still, {0, 1}, 5)));
}

TEST_F(ImageFolders, ViewsWithoutRandomnessRefuseWhatIsRandom) {
  zoo::write_tinted_images(train(), 2, 0);
  const zoo::ClassHead head = class_head();
  const auto refused = [&](ImageViewOptions views, const char* key) {
    views.recipe = ViewRecipe::kNone;
    expect_error(
        [&] { batches(head, {.views = views}); },
        {key, "data.views.recipe is none"});
  };
  refused({.flip = 1}, "data.views.flip");
  refused({.gray = 1}, "data.views.gray");
  refused({.jitter = {0.4, 0.4, 0.2, 0.1}}, "data.views.jitter");
  refused({.solarize = {1}}, "data.views.solarize");
  refused({.blur = {0.5}}, "data.views.blur");
  refused({.least_area = 0.5}, "data.views.area");
  refused({.most_ratio = 2}, "data.views.ratio");
}

TEST_F(ImageFolders, ScoredPixelsAreNormalized) {
  zoo::Image image({40, 20}); // the middle 20 x 20 are (51, 102, 255)
  for (int64_t y = 10; y < 30; ++y) {
    for (int64_t x = 0; x < 20; ++x) {
      image.row(y)[x * 3] = 51;
      image.row(y)[x * 3 + 1] = 102;
      image.row(y)[x * 3 + 2] = 255;
    }
  }
  zoo::write_png(train() / "a" / "0.png", image);
  zoo::write_png(train() / "b" / "0.png", image);
  const zoo::ClassHead head = class_head();
  ImageOptions options{.fit = ImageFit::kCenterCrop, .center_crop = 0.9};
  zoo::ExampleOptions examples;
  const ImageBatches data = batches(
      head,
      options,
      {.pixels = {.mean = {0.1, 0.2, 0.3}, .std = {0.5, 0.25, 0.5}}});
  const auto input = data.make({0, 1}, zoo::kScoredEpoch, false);
  for (const auto& [channel, value] :
       {std::pair(0, 0.2), std::pair(1, 0.8), std::pair(2, 1.4)}) {
    EXPECT_TRUE(input.pixel_values.select(1, channel)
                    .allclose(torch::full({2, kSide, kSide}, value)));
  }
  EXPECT_TRUE(input.labels.equal(torch::tensor({0, 1}, torch::kLong)));
  // Black above and below, if the whole image is stretched.
  options.fit = ImageFit::kStretch;
  const at::Tensor full =
      pixels_of(batches(head, options), {0}, zoo::kScoredEpoch);
  EXPECT_EQ(full[0][2][0].max().item<float>(), 0);
  EXPECT_EQ(full[0][2][8].min().item<float>(), 1);
}

TEST_F(ImageFolders, ScoredPixelsAreStretchedBeforeTheyAreCropped) {
  zoo::Image image({40, 20});
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<uint8_t>(i * i % 251);
  }
  zoo::write_png(train() / "a" / "0.png", image);
  zoo::write_png(train() / "b" / "0.png", image);
  const zoo::ClassHead head = class_head();
  const at::Tensor pixels = pixels_of(
      batches(
          head,
          {.fit = ImageFit::kStretchCrop,
           .center_crop = 0.8,
           .interpolation = zoo::Interpolation::kBicubic}),
      {0},
      zoo::kScoredEpoch);
  constexpr int64_t kStretched = kSide * 5 / 4;
  constexpr int64_t kEdge = (kStretched - kSide) / 2;
  static_assert(kEdge > 0 && kStretched * 4 == kSide * 5);
  const zoo::Image whole = zoo::resized(
      image,
      {0, 0, image.size},
      {kStretched, kStretched},
      zoo::Interpolation::kBicubic);
  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        ASSERT_NEAR(
            pixels[0][c][y][x].item<double>(),
            whole.row(y + kEdge)[(x + kEdge) * 3 + c] / 255.0,
            1e-6)
            << y << ", " << x;
      }
    }
  }
}

TEST_F(ImageFolders, MixUpBlendsImagesAndLabels) {
  zoo::write_tinted_images(train(), 6, 0);
  const zoo::ClassHead head = class_head();
  ImageOptions options{.views = {.recipe = ViewRecipe::kNone}};
  const ImageBatches plain = batches(head, options);
  options.mixup = 1;
  const ImageBatches data = batches(head, options);
  std::vector<size_t> rows(12);
  std::iota(rows.begin(), rows.end(), size_t{0});
  const zoo::ModelInput mixed = data.make(rows, 3, true);
  EXPECT_EQ(mixed.labels.sizes(), (std::vector<int64_t>{12, 2}));
  EXPECT_TRUE(mixed.labels.sum(1).allclose(torch::ones({12})));
  EXPECT_GT(
      mixed.labels.gt(0.01)
          .logical_and(mixed.labels.lt(0.99))
          .sum()
          .item<int64_t>(),
      2);
  // Each row is its own image, and another one by the weight of the label.
  const at::Tensor own = pixels_of(plain, rows, 3);
  int64_t found = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const double weight = mixed.labels[i][i < 6 ? 0 : 1].item<double>();
    const at::Tensor rest = mixed.pixel_values[i] - weight * own[i];
    for (int64_t j = 0; j < 12; ++j) {
      if ((j < 6) != (i < 6) && rest.allclose((1 - weight) * own[j], 0, 1e-5)) {
        ++found;
        break;
      }
    }
  }
  EXPECT_GT(found, 2);
  EXPECT_TRUE(
      mixed.pixel_values.narrow(0, 4, 1).equal(pixels_of(data, {4}, 3)));
  // What is scored is not mixed.
  EXPECT_TRUE(pixels_of(data, rows, zoo::kScoredEpoch)
                  .equal(pixels_of(plain, rows, zoo::kScoredEpoch)));
  // Equal weights of both classes: the loss is the mean of theirs.
  const zoo::ClassifierOptions single{2, "single_label_classification"};
  const at::Tensor logits = torch::tensor({{2.0, -1.0}});
  const auto loss = [&](const at::Tensor& labels) {
    return zoo::classifier_loss(logits, labels, single).item<double>();
  };
  EXPECT_NEAR(
      loss(torch::tensor({{0.25, 0.75}})),
      0.25 * loss(torch::tensor({0})) + 0.75 * loss(torch::tensor({1})),
      1e-6);
}

TEST_F(ImageFolders, GiveMocoTwoViewsOfEachImage) {
  zoo::write_tinted_images(train() / "any", 3, 0);
  const fs::path config = fs::path(tests::source_dir()) /
                          "tests/zoo/fixtures/models/moco/config.json";
  const auto model = zoo::from_config(
      runtime::parse_json(runtime::read_text_file(config), config.string()));
  const auto head = model->head();
  const ImageBatches data = batches(*head);
  const zoo::ModelInput input = data.make({0, 5}, 0, true);
  const at::Tensor& second = input.others.at("second_pixel_values");
  EXPECT_EQ(second.sizes(), input.pixel_values.sizes());
  EXPECT_FALSE(second[0].equal(input.pixel_values[0]));
  EXPECT_FALSE(second[1].equal(input.pixel_values[1]));
  EXPECT_FALSE(input.labels.defined());
  const zoo::ModelInput again = data.make({5}, 0, true);
  EXPECT_TRUE(second[1].equal(again.others.at("second_pixel_values")[0]));
  const zoo::ModelInput later = data.make({0, 5}, 1, true);
  EXPECT_FALSE(second.equal(later.others.at("second_pixel_values")));
  EXPECT_FALSE(input.pixel_values.equal(later.pixel_values));
  // Also where both views have the same recipe.
  const ImageBatches crops =
      batches(*head, {.views = {.recipe = ViewRecipe::kCrop}});
  const zoo::ModelInput cropped = crops.make({0}, 0, true);
  EXPECT_FALSE(
      cropped.pixel_values.equal(cropped.others.at("second_pixel_values")));
  model->train();
  EXPECT_TRUE(model->forward(input).loss.isfinite().item<bool>());
}

TEST_F(ImageFolders, GiveAutoencodersPixelsAndNoise) {
  zoo::write_tinted_images(train(), 2, 0);
  const zoo::AutoencoderHead head(small_images(1));
  const ImageBatches data = batches(head);
  const zoo::ModelInput input = data.make({0, 1, 2}, 0, true);
  EXPECT_EQ(
      input.pixel_values.sizes(), (std::vector<int64_t>{3, 1, kSide, kSide}));
  EXPECT_EQ(input.others.at("noise").sizes(), (std::vector<int64_t>{3, 16}));
  expect_error([&] { batches(head, {.mixup = 1}); }, {"data.mixup"});
}

TEST_F(ImageFolders, TakeWhatThePreprocessorOfTheModelSays) {
  ImageOptions images;
  zoo::PixelOptions pixels;
  complete_from_preprocessor({}, images, pixels);
  EXPECT_EQ(images.fit, ImageFit::kCenterCrop);
  EXPECT_EQ(images.interpolation, zoo::Interpolation::kBilinear);
  EXPECT_EQ(pixels.mean, (std::vector<double>{0.485, 0.456, 0.406}));
  const auto complete = [&](const char* text) {
    std::ofstream(folder_ / "preprocessor_config.json") << text;
    images = {};
    pixels = {.std = {0.9}};
    complete_from_preprocessor(folder_.path(), images, pixels);
  };
  complete(R"({"size": {"height": 224, "width": 224}, "resample": 3,
      "image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.1, 0.1],
      "rescale_factor": 0.01})");
  EXPECT_EQ(images.fit, ImageFit::kStretch);
  EXPECT_EQ(images.interpolation, zoo::Interpolation::kBicubic);
  EXPECT_EQ(pixels.mean, (std::vector<double>{0.5, 0.4, 0.3}));
  EXPECT_EQ(pixels.std, (std::vector<double>{0.9})); // the configuration's
  EXPECT_EQ(pixels.scale, 0.01);
  EXPECT_EQ(images.center_crop, 0.875);
  complete(R"({"do_center_crop": true, "size": {"shortest_edge": 36},
      "crop_size": {"height": 32, "width": 32}})");
  EXPECT_EQ(images.fit, ImageFit::kCenterCrop);
  EXPECT_EQ(images.center_crop, 32.0 / 36);
  complete(R"({"do_center_crop": true, "size": 32, "crop_size": 32})"); // CLIP
  EXPECT_EQ(images.center_crop, 1);
  complete(
      R"({"size": {"shortest_edge": 224}, "crop_pct": 0.875})"); // ConvNeXT
  EXPECT_EQ(images.fit, ImageFit::kCenterCrop);
  EXPECT_EQ(images.center_crop, 224.0 / 256);
  complete(R"({"size": {"shortest_edge": 384}, "crop_pct": 0.95})");
  EXPECT_EQ(images.fit, ImageFit::kStretch);
  // Both sides are stretched, and then cropped: of DeiT and BEiT also where the
  // size is an integer.
  for (const char* name : {"DeiT", "Beit"}) {
    for (const char* kind :
         {"FeatureExtractor", "ImageProcessor", "ImageProcessorFast"}) {
      SCOPED_TRACE(std::string(name) + kind);
      const std::string key = std::string(kind) == "FeatureExtractor"
                                  ? "feature_extractor_type"
                                  : "image_processor_type";
      const std::string crop = R"({"do_center_crop": true, "size": 36, ")" +
                               key + "\": \"" + name + kind + "\", ";
      complete((crop + R"("crop_size": 32})").c_str());
      EXPECT_EQ(images.fit, ImageFit::kStretchCrop);
      EXPECT_EQ(images.center_crop, 32.0 / 36);
      complete((crop + R"("crop_size": 36})").c_str());
      EXPECT_EQ(images.fit, ImageFit::kStretch);
    }
  }
  complete(R"({"do_center_crop": true, "size": {"height": 40, "width": 20},
      "crop_size": {"height": 32, "width": 16}})");
  EXPECT_EQ(images.fit, ImageFit::kStretchCrop);
  EXPECT_EQ(images.center_crop, 0.8);
  complete(R"({"do_center_crop": false, "size": {"height": 40, "width": 20},
      "crop_size": {"height": 32, "width": 16}})");
  EXPECT_EQ(images.fit, ImageFit::kStretch);
  complete(R"({"do_center_crop": true, "size": 36, "crop_size": 32,
      "feature_extractor_type": "CLIPFeatureExtractor"})");
  EXPECT_EQ(images.fit, ImageFit::kCenterCrop);
  // The numbers that a processor of transformers has of its own.
  for (const auto& [type, mean, std] :
       std::initializer_list<std::tuple<const char*, double, double>>{
           {R"("image_processor_type": "ViTImageProcessor")", 0.5, 0.5},
           {R"("image_processor_type": "ViTImageProcessorFast")", 0.5, 0.5},
           {R"("feature_extractor_type": "ViTFeatureExtractor")", 0.5, 0.5},
           {R"("image_processor_type": "BeitImageProcessor")", 0.5, 0.5},
           {R"("do_resize": true)", 0.5, 0.5},
           {R"("image_processor_type": "CLIPImageProcessor")",
            0.48145466,
            0.26862954},
           {R"("image_processor_type": "PvtImageProcessor")", 0.485, 0.229}}) {
    SCOPED_TRACE(type);
    std::ofstream(folder_ / "preprocessor_config.json") << "{" << type << "}";
    pixels = {};
    complete_from_preprocessor(folder_.path(), images, pixels);
    ASSERT_EQ(pixels.mean.size(), 3U);
    ASSERT_EQ(pixels.std.size(), 3U);
    EXPECT_EQ(pixels.mean[0], mean);
    EXPECT_EQ(pixels.std[0], std);
  }
  // What is written is read again, over what was there.
  for (const ImageFit fit :
       {ImageFit::kStretch, ImageFit::kCenterCrop, ImageFit::kStretchCrop}) {
    const bool crops = fit != ImageFit::kStretch;
    ImageOptions written{
        .fit = fit,
        .center_crop = 0.83,
        .interpolation = zoo::Interpolation::kBicubic};
    const zoo::PixelOptions numbers{
        .scale = 0.02, .mean = {0.1, 0.2, 0.3}, .std = {0.4, 0.5, 0.6}};
    write_preprocessor(
        folder_.path(), written, numbers, {.height = 32, .width = 32});
    images = {};
    pixels = {};
    complete_from_preprocessor(folder_.path(), images, pixels);
    EXPECT_EQ(images.fit, written.fit);
    EXPECT_EQ(images.center_crop, crops ? 0.83 : 0.875);
    EXPECT_EQ(images.interpolation, written.interpolation);
    EXPECT_EQ(pixels.scale, numbers.scale);
    EXPECT_EQ(pixels.mean, numbers.mean);
    EXPECT_EQ(pixels.std, numbers.std);
    const auto file = runtime::parse_json(
        runtime::read_text_file(folder_ / "preprocessor_config.json"), "");
    const int side = crops ? 39 : 32;
    const nlohmann::json size =
        fit == ImageFit::kCenterCrop
            ? nlohmann::json{{"shortest_edge", side}}
            : nlohmann::json{{"height", side}, {"width", side}};
    EXPECT_EQ(file.at("size"), size);
  }
  complete(R"({"size": {"shortest_edge": 384}, "crop_pct": 0.95})");
  ImageOptions given;
  given.center_crop = 0.5;
  complete_from_preprocessor(folder_.path(), given, pixels);
  EXPECT_EQ(given.center_crop, 0.5);
  testing::internal::CaptureStderr();
  complete(R"({"do_resize": false, "do_pad": false, "unheard_of": 1,
      "image_processor_type": "ViTImageProcessor"})");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("do_resize=false"), std::string::npos) << log;
  EXPECT_NE(log.find("unheard_of=1"), std::string::npos) << log;
  EXPECT_EQ(log.find("do_pad"), std::string::npos) << log;
  expect_error(
      [&] {
        complete(R"({"do_center_crop": true, "size": {"shortest_edge": 30},
            "crop_size": 32})");
      },
      {"'crop_size' is 32", "30", "data.center_crop"});
  // as the message says
  given = {.center_crop = 0.5};
  complete_from_preprocessor(folder_.path(), given, pixels);
  EXPECT_EQ(given.fit, ImageFit::kCenterCrop);
  expect_error(
      [&] {
        complete(R"({"do_center_crop": true, "crop_size": 32,
            "size": {"height": 40, "width": 36}})");
      },
      {"32 x 32", "40 x 36", "data.center_crop"});
  expect_error(
      [&] { complete(R"({"resample": 1})"); },
      {"preprocessor_config.json", "'resample' is 1"});
  expect_error(
      [&] { complete(R"({"image_mean": "a"})"); }, {"image_mean", "numbers"});
}

} // namespace tessera::tasks::image_folder_test
