// SPDX-License-Identifier: Apache-2.0
#pragma once
// random_view() makes a random view of an image, as models of images are
// trained on; `ViewOptions` says what is random.

#include "tessera/zoo/images/image_random.h"
#include "tessera/zoo/images/resize.h"

namespace tessera::zoo {

/// In this order; probabilities of 0 leave a change out.
struct ViewOptions {
  /// The crop: its fraction of the image's area, and its width by its height
  /// (arXiv:1409.4842).
  double least_area = 0.08;
  double most_area = 1;
  double least_ratio = 3.0 / 4;
  double most_ratio = 4.0 / 3;
  /// Color jitter: factors are between 1 - x and 1 + x, turns of the hue
  /// between -x and x.
  double jitter = 0; ///< probability
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  double gray = 0; ///< probability
  /// Probability of a Gaussian blur, whose sigma is from 0.1 to 2 pixels of an
  /// image that is 224 pixels wide.
  double blur = 0;
  double solarize = 0; ///< probability
  double flip = 0.5; ///< probability
};

/// The crop of a view: up to ten random ones are tried; if none lies in the
/// image, the largest one in its middle with an allowed ratio.
ImageBox random_crop(
    const ImageSize& image,
    const ViewOptions& options,
    ImageRandom& random);

Image random_view(
    const Image& image,
    const ImageSize& size,
    Interpolation interpolation,
    const ViewOptions& options,
    ImageRandom& random);

} // namespace tessera::zoo
