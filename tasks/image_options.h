// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageOptions` says how batches are made of images in folders.

#include "tessera/zoo/images/image_views.h"

#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

struct PixelOptions;

} // namespace tessera::zoo

namespace tessera::tasks {

/// What is random in the images that are trained on.
enum class ViewRecipe {
  kNone, ///< as images that are scored
  kCrop, ///< a crop that may be mirrored
  kMoco, ///< MoCo v3's two views (arXiv:2104.02057): colors and blur as well
};

/// The section `data.views`; what is not given follows from the recipe.
struct ImageViewOptions {
  std::optional<ViewRecipe> recipe; ///< not given: the head's
  double least_area = 0.08, most_area = 1;
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;
  double flip = 0.5;
  std::vector<double> jitter;
  std::optional<double> jitter_probability;
  std::optional<double> gray;
  std::vector<double> blur; ///< of each view, or one for all
  std::vector<double> solarize; ///< likewise

  /// @param recipe as given, or the head's.
  /// @param number of the view: 0 or 1.
  zoo::ViewOptions view(ViewRecipe recipe, int number) const;
};

void visit_fields(runtime::OptionFields& fields, ImageViewOptions& options);

/// @param recipe as given, or the head's.
/// @throws tessera::Error if it leaves images as they are, and others are set.
void check(const ImageViewOptions& options, ViewRecipe recipe);

/// What is checked of each image before training starts.
enum class ImageCheck { kHeaders, kPixels };

/// How whole images become images of the model's size.
enum class ImageFit {
  kCenterCrop, ///< the middle, after the shorter side is resized
  kStretch, ///< width and height separately
  kStretchCrop, ///< the middle of what is stretched
};

/// The fraction of the shorter side that is kept if nothing says another one.
inline constexpr double kUsualCenterCrop = 0.875;

struct ImageOptions {
  double heldout_share = 0; ///< of the training images
  ImageCheck check = ImageCheck::kHeaders;
  bool skip_bad_images = false;
  ImageViewOptions views;
  double mixup = 0; ///< alpha of arXiv:1710.09412; 0: off
  std::optional<ImageFit> fit; ///< of images that are scored
  std::optional<double> center_crop; ///< of their shorter side, or both
  std::optional<zoo::Interpolation> interpolation;
};

/// Those of `data`, besides ImageOptions::views.
void visit_image_fields(runtime::OptionFields& fields, ImageOptions& options);

/// Completes what is not given from the preprocessor_config.json of a model
/// folder, or else with ImageNet's mean and standard deviation, a center crop,
/// and bilinear interpolation.
/// @param folder may be empty.
/// @throws tessera::Error naming the file on values that are not supported.
void complete_from_preprocessor(
    const std::filesystem::path& folder,
    ImageOptions& images,
    zoo::PixelOptions& pixels);

/// Writes how scored images are made into the preprocessor_config.json of a
/// model folder, of which other fields stay: complete_from_preprocessor() reads
/// the same again. transformers' processors resize to whole pixels, so that
/// ImageOptions::center_crop is a field of its own, which they do not know.
/// @param images, pixels complete.
void write_preprocessor(
    const std::filesystem::path& folder,
    const ImageOptions& images,
    const zoo::PixelOptions& pixels,
    const zoo::ImageSize& size);

} // namespace tessera::tasks
