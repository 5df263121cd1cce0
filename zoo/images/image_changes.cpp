// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/image_changes.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera::zoo {

namespace {

using Pixel = std::array<uint8_t, 3>;

/// Replaces each pixel by change(pixel).
template <typename Change>
void each_pixel(Image& image, const Change& change) {
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const Pixel pixel = change(
        Pixel{image.pixels[i], image.pixels[i + 1], image.pixels[i + 2]});
    std::copy_n(pixel.begin(), 3, image.pixels.begin() + i);
  }
}

uint8_t gray_of(const Pixel& pixel) {
  return static_cast<uint8_t>(
      (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
}

/// Values between 0 and 255, without rounding, as Pillow's blend().
uint8_t blended(uint8_t other, uint8_t value, float factor) {
  const float sum =
      static_cast<float>(other) +
      factor * (static_cast<float>(value) - static_cast<float>(other));
  return static_cast<uint8_t>(std::clamp(sum, 0.0F, 255.0F));
}

/// Blends each pixel with gray(pixel).
template <typename Gray>
void blend_with(Image& image, double factor, const Gray& gray) {
  each_pixel(image, [&](Pixel pixel) {
    const uint8_t other = gray(pixel);
    for (uint8_t& value : pixel) {
      value = blended(other, value, static_cast<float>(factor));
    }
    return pixel;
  });
}

/// Hue, saturation and value, each from 0 to 255.
Pixel hsv_of(const Pixel& rgb) {
  const int most = std::max({rgb[0], rgb[1], rgb[2]});
  const int least = std::min({rgb[0], rgb[1], rgb[2]});
  if (most == least) {
    return {0, 0, static_cast<uint8_t>(most)};
  }
  const auto range = static_cast<float>(most - least);
  const auto below = [&](size_t c) {
    return static_cast<float>(most - rgb[c]) / range;
  };
  float hue = 0;
  if (rgb[0] == most) {
    hue = below(2) - below(1);
  } else if (rgb[1] == most) {
    hue = static_cast<float>(2.0 + below(0) - below(2));
  } else {
    hue = static_cast<float>(4.0 + below(1) - below(0));
  }
  // Sums in double are rounded to float, as by Pillow.
  const auto turn = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {
      static_cast<uint8_t>(turn * 255.0),
      static_cast<uint8_t>(range / static_cast<float>(most) * 255.0),
      static_cast<uint8_t>(most)};
}

Pixel rgb_of(const Pixel& hsv) {
  const double sixth = hsv[0] * 6.0 / 255.0;
  const auto sector = static_cast<int>(sixth);
  const double part = sixth - sector;
  const double saturation = hsv[1] / 255.0;
  const auto darker = [&](double by) {
    return static_cast<uint8_t>(
        std::clamp<long>(std::lround(hsv[2] * (1 - saturation * by)), 0, 255));
  };
  const uint8_t v = hsv[2];
  const uint8_t p = darker(1);
  const uint8_t q = darker(part);
  const uint8_t t = darker(1 - part);
  const std::array<Pixel, 6> sectors{
      Pixel{v, t, p},
      Pixel{q, v, p},
      Pixel{p, v, t},
      Pixel{p, q, v},
      Pixel{t, p, v},
      Pixel{v, p, q}};
  return sectors[static_cast<size_t>(sector % 6)];
}

std::vector<float> gaussian(double sigma) {
  const auto reach = static_cast<int>(std::ceil(3 * sigma));
  std::vector<float> weights;
  float sum = 0;
  for (int x = -reach; x <= reach; ++x) {
    weights.push_back(
        static_cast<float>(std::exp(-0.5 * x * x / (sigma * sigma))));
    sum += weights.back();
  }
  for (float& weight : weights) {
    weight /= sum;
  }
  return weights;
}

} // namespace

void flip_horizontally(Image& image) {
  for (int64_t y = 0; y < image.size.height; ++y) {
    uint8_t* left = image.row(y);
    uint8_t* right = left + (image.size.width - 1) * 3;
    for (; left < right; left += 3, right -= 3) {
      std::swap_ranges(left, left + 3, right);
    }
  }
}

void change_brightness(Image& image, double factor) {
  blend_with(image, factor, [](const Pixel& /*pixel*/) { return uint8_t{0}; });
}

void change_contrast(Image& image, double factor) {
  int64_t sum = 0;
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    sum += gray_of({image.pixels[i], image.pixels[i + 1], image.pixels[i + 2]});
  }
  const auto mean = static_cast<uint8_t>(
      static_cast<double>(sum) / static_cast<double>(image.size.area()) + 0.5);
  blend_with(image, factor, [&](const Pixel& /*pixel*/) { return mean; });
}

void change_saturation(Image& image, double factor) {
  blend_with(image, factor, gray_of);
}

void change_hue(Image& image, double turns) {
  const auto shift = static_cast<int>(turns * 255);
  each_pixel(image, [&](const Pixel& pixel) {
    Pixel hsv = hsv_of(pixel);
    hsv[0] = static_cast<uint8_t>(hsv[0] + shift);
    return rgb_of(hsv);
  });
}

void make_gray(Image& image) {
  each_pixel(image, [](const Pixel& pixel) {
    const uint8_t gray = gray_of(pixel);
    return Pixel{gray, gray, gray};
  });
}

void solarize(Image& image) {
  for (uint8_t& value : image.pixels) {
    value = value < 128 ? value : static_cast<uint8_t>(255 - value);
  }
}

void blur(Image& image, double sigma) {
  const std::vector<float> weights = gaussian(sigma);
  const auto reach = static_cast<int64_t>(weights.size() / 2);
  const auto [height, width] = image.size;
  std::vector<float> rows(image.pixels.size()); // blurred along rows
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = image.row(y);
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t k = -reach; k <= reach; ++k) {
        const int64_t from = std::clamp<int64_t>(x + k, 0, width - 1);
        for (int64_t c = 0; c < 3; ++c) {
          rows[(y * width + x) * 3 + c] +=
              weights[k + reach] * static_cast<float>(row[from * 3 + c]);
        }
      }
    }
  }
  const int64_t stride = width * 3;
  std::vector<float> sums(static_cast<size_t>(stride));
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int64_t k = -reach; k <= reach; ++k) {
      const float* row =
          rows.data() + std::clamp<int64_t>(y + k, 0, height - 1) * stride;
      for (int64_t i = 0; i < stride; ++i) {
        sums[i] += weights[k + reach] * row[i];
      }
    }
    std::transform(sums.begin(), sums.end(), image.row(y), [](float sum) {
      return static_cast<uint8_t>(std::clamp(sum + 0.5F, 0.0F, 255.0F));
    });
  }
}

} // namespace tessera::zoo
