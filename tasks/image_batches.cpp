// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/image_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/threads/parallel.h"
#include "tessera/zoo/images/image_changes.h"
#include "tessera/zoo/images/image_file.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tessera::tasks {

namespace {

/// Numbers of random draws of an image, besides those of its views.
constexpr int kMixDraw = 2;
/// The view of the image that another one is mixed with.
constexpr int kMixedView = 3;

/// [height, width, 3] -> [channels, height, width].
void write_planes(zoo::Image& image, int64_t channels, uint8_t* planes) {
  if (channels == 1) {
    zoo::make_gray(image);
  }
  const int64_t area = image.size.area();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < area; ++i) {
      planes[c * area + i] = image.pixels[static_cast<size_t>(i * 3 + c)];
    }
  }
}

/// The middle of an image that is stretched so that `size` is the fraction
/// `share` of both sides: to the same bytes as Pillow's resize() and crop().
zoo::Image middle_of_stretched(
    const zoo::Image& image,
    const zoo::ImageSize& size,
    double share,
    zoo::Interpolation filter) {
  const auto scaled = [&](int64_t side) {
    return std::llround(static_cast<double>(side) / share);
  };
  const zoo::Image stretched = zoo::resized(
      image,
      {0, 0, image.size},
      {.height = scaled(size.height), .width = scaled(size.width)},
      filter);
  const zoo::ImageBox middle{
      .top = (stretched.size.height - size.height) / 2,
      .left = (stretched.size.width - size.width) / 2,
      .size = size};
  return zoo::resized(stretched, middle, size, filter);
}

} // namespace

/// An image of the folder, and the example whose draws make its views.
struct ImageBatches::Decoding {
  size_t image;
  size_t example;
  int first_view;
};

ImageBatches::ImageBatches(
    ImageFolder folder,
    const zoo::Head& head,
    const ImageOptions& images,
    const zoo::ExampleOptions& examples)
    : folder_(std::move(folder)),
      head_(head),
      options_(images),
      examples_(examples),
      recipe_(options_.views.recipe.value_or(
          head.takes_two_views() ? ViewRecipe::kMoco : ViewRecipe::kCrop)),
      has_classes_(head.labels() == zoo::HeadLabels::kClass) {
  TESSERA_CHECK(
      head.images() != nullptr,
      "image_folder trains models of images, and this model takes none; name another class in model.architecture");
  check(options_.views, recipe_);
  const int64_t channels = head.images()->channels;
  TESSERA_CHECK(
      channels == 1 || channels == 3,
      "the model takes images of {} channels; files have 1 (gray) or 3",
      channels);
  TESSERA_CHECK(
      options_.mixup == 0 || has_classes_,
      "data.mixup blends the labels of images, and this model has no classes; remove it");
  zoo::PixelOptions& pixels = examples_.pixels;
  for (std::vector<double>* numbers : {&pixels.mean, &pixels.std}) {
    if (channels == 1 && numbers->size() == 3) {
      // Of ImageNet's colors: as if gray were one.
      *numbers = {((*numbers)[0] + (*numbers)[1] + (*numbers)[2]) / 3};
    }
    TESSERA_CHECK(
        numbers->size() <= 1 ||
            static_cast<int64_t>(numbers->size()) == channels,
        "data.pixels: {} values for {} channels; give one per channel in mean and std, or one for all",
        numbers->size(),
        channels);
  }
}

std::string ImageBatches::text() const {
  std::string text = runtime::count_text(static_cast<int64_t>(size()), "image");
  if (has_classes_) {
    text += formatted(" of {} classes", folder_.classes.size());
  }
  return text + formatted(" in '{}'", folder_.path.string());
}

at::Tensor ImageBatches::decoded(
    const std::vector<Decoding>& images,
    int64_t views,
    int64_t epoch) const {
  const zoo::ImageSize size = head_.images()->image;
  const int64_t channels = head_.images()->channels;
  const auto count = static_cast<int64_t>(images.size());
  const at::Tensor pixels = torch::empty(
      {views, count, channels, size.height, size.width}, torch::kByte);
  auto* const planes = pixels.data_ptr<uint8_t>();
  const int64_t bytes = channels * size.area();
  const bool is_random =
      recipe_ != ViewRecipe::kNone &&
      (epoch != zoo::kScoredEpoch || head_.takes_two_views());
  const zoo::Interpolation filter =
      options_.interpolation.value_or(zoo::Interpolation::kBilinear);
  runtime::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Decoding& one = images[static_cast<size_t>(i)];
      const zoo::Image image =
          zoo::read_image(folder_.images.at(one.image).path);
      for (int64_t v = 0; v < views; ++v) {
        zoo::Image view;
        if (is_random) {
          zoo::ImageRandom random(
              examples_.seed,
              epoch,
              one.example,
              one.first_view + static_cast<int>(v));
          view = zoo::random_view(
              image,
              size,
              filter,
              options_.views.view(recipe_, static_cast<int>(v)),
              random);
        } else if (options_.fit == ImageFit::kStretch) {
          view = zoo::resized(image, {0, 0, image.size}, size, filter);
        } else if (options_.fit == ImageFit::kStretchCrop) {
          view = middle_of_stretched(
              image,
              size,
              options_.center_crop.value_or(kUsualCenterCrop),
              filter);
        } else {
          view = zoo::center_cropped(
              image,
              size,
              options_.center_crop.value_or(kUsualCenterCrop),
              filter);
        }
        write_planes(view, channels, planes + (v * count + i) * bytes);
      }
    }
  });
  return pixels;
}

void ImageBatches::add_mixed(
    zoo::NamedTensors& batch,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  std::vector<Decoding> others;
  std::vector<float> weights;
  std::vector<int64_t> labels;
  for (const size_t example : examples) {
    zoo::ImageRandom random(examples_.seed, epoch, example, kMixDraw);
    weights.push_back(static_cast<float>(random.beta(options_.mixup)));
    const auto other =
        static_cast<size_t>(random.below(static_cast<int64_t>(size())));
    others.push_back({other, example, kMixedView});
    labels.push_back(folder_.images.at(other).label);
  }
  const auto rows = static_cast<int64_t>(examples.size());
  const at::Tensor weight = torch::tensor(weights).view({rows, 1});
  const auto classes = static_cast<int64_t>(folder_.classes.size());
  const auto one_hot = [&](const at::Tensor& numbers) {
    return torch::zeros({rows, classes})
        .scatter(1, numbers.view({rows, 1}), 1.0);
  };
  batch["labels"] = torch::lerp(
      one_hot(torch::tensor(labels, torch::kLong)),
      one_hot(batch.at("labels")),
      weight);
  at::Tensor& pixels = batch["pixel_values"];
  const at::Tensor mixed = decoded(others, 1, epoch)[0].to(torch::kFloat);
  mixed.lerp_(pixels.to(torch::kFloat), weight.view({rows, 1, 1, 1}));
  // Pixels are no bytes any more, from which 1 / 255 would follow.
  pixels = examples_.pixels.scale ? mixed : mixed.div_(255);
}

zoo::ModelInput ImageBatches::make(
    const std::vector<size_t>& examples,
    int64_t epoch,
    bool loss_only) const {
  std::vector<Decoding> images;
  std::vector<int64_t> labels;
  for (const size_t example : examples) {
    images.push_back({example, example, 0});
    labels.push_back(folder_.images.at(example).label);
  }
  const at::Tensor views =
      decoded(images, head_.takes_two_views() ? 2 : 1, epoch);
  zoo::NamedTensors batch{{"pixel_values", views[0]}};
  if (head_.takes_two_views()) {
    batch["second_pixel_values"] = views[1];
  }
  if (has_classes_) {
    batch["labels"] = torch::tensor(labels, torch::kLong);
    if (options_.mixup > 0 && epoch != zoo::kScoredEpoch) {
      add_mixed(batch, examples, epoch);
    }
  }
  head_.draw(batch, examples_, [&](int64_t each) {
    return zoo::draws_of(examples, epoch, examples_.seed, each);
  });
  for (auto& [name, tensor] : batch) {
    if (head_.kind_of(name) == zoo::InputKind::kPixels) {
      tensor = zoo::prepared_pixels(tensor, examples_.pixels);
    }
  }
  zoo::ModelInput input = zoo::ModelInput::from_named(batch);
  input.loss_only = loss_only;
  return input;
}

TaskScore ImageBatches::report(const zoo::Score& score) const {
  const std::string images = runtime::count_text(score.examples, "image");
  if (!has_classes_) {
    return {
        formatted("loss {:.4f} over {}", score.loss, images),
        {{"heldout_loss", score.loss}, {"heldout_examples", score.examples}}};
  }
  std::vector<int64_t> counts(folder_.classes.size());
  for (const ImageFolder::File& image : folder_.images) {
    ++counts.at(static_cast<size_t>(image.label));
  }
  const double majority =
      static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
      static_cast<double>(size());
  return {
      formatted(
          "accuracy {:.1f} % of {}, loss {:.4f} (always guessing the most frequent class: {:.1f} %)",
          100 * score.right,
          images,
          score.loss,
          100 * majority),
      {{"heldout_accuracy", score.right},
       {"heldout_loss", score.loss},
       {"heldout_examples", score.examples},
       {"majority_baseline", majority}}};
}

} // namespace tessera::tasks
