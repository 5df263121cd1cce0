// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/image_predictor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/tasks/image_batches.h"
#include "tessera/tasks/image_folder_task.h"

#include <torch/types.h>

#include <numeric>
#include <utility>

namespace tessera::tasks {

ImagePredictor::ImagePredictor(TrainedModel trained, c10::Device device)
    : labels_(class_labels_of(trained)),
      trained_(std::move(trained)),
      device_(device) {
  TESSERA_CHECK(
      trained_.head->images() != nullptr,
      "'{}' does not classify images: it has a {}",
      trained_.folder.string(),
      trained_.model->architecture());
  trained_.place(device_);
}

std::vector<ImageFolder::File> ImagePredictor::images_of(
    const std::vector<std::string>& names) const {
  ImageFolder folder = ImageFolder::of(names);
  ImageOptions options = trained_.config.as<ImageTaskOptions>().images;
  if (options.skip_bad_images) {
    options.check = ImageCheck::kPixels;
  }
  folder.check(options, /*tells=*/true);
  return folder.images;
}

std::vector<std::vector<double>> ImagePredictor::predict(
    const std::vector<ImageFolder::File>& images) const {
  const at::NoGradGuard no_grad;
  ImageFolder folder;
  folder.images = images;
  const ImageBatches batches(
      std::move(folder),
      *trained_.head,
      trained_.config.as<ImageTaskOptions>().images,
      trained_.config.as<ImageTaskOptions>().examples);
  std::vector<size_t> all(images.size());
  std::iota(all.begin(), all.end(), size_t{0});
  zoo::ModelInput input =
      batches.make(all, zoo::kScoredEpoch, /*loss_only=*/false);
  input.labels = at::Tensor(); // there are none
  input = input.with_tensors([&](const at::Tensor& tensor) {
    return runtime::to_device(tensor, device_);
  });
  return class_values(trained_.model->forward(input).logits, labels_.kind);
}

} // namespace tessera::tasks
