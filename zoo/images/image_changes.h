// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes of images, in place: mirrored, recolored, blurred. Those of colors
// make the same bytes as torchvision's on images of Pillow.

#include "tessera/zoo/images/image.h"

namespace tessera::zoo {

/// Left becomes right.
void flip_horizontally(Image& image);

/// Multiplies all values.
void change_brightness(Image& image, double factor);
/// Blends with the mean gray: 0 is gray, 1 the image.
void change_contrast(Image& image, double factor);
/// Blends with the gray image: 0 is gray, 1 the image.
void change_saturation(Image& image, double factor);
/// Turns the color circle. @param turns from -0.5 to 0.5.
void change_hue(Image& image, double turns);
void make_gray(Image& image);
/// Inverts values of at least 128.
void solarize(Image& image);

/// A Gaussian blur; pixels at the edges continue beyond them.
/// @param sigma standard deviation in pixels.
void blur(Image& image, double sigma);

} // namespace tessera::zoo
