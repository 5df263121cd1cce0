// SPDX-License-Identifier: Apache-2.0
// Decoded, resized and recolored images beside those of Pillow, from
// tests/fixture_makers/images.py.
#include "tessera/zoo/images/image_changes.h"

#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/zoo/images/image_file.h"
#include "tessera/zoo/images/image_views.h"
#include "zoo/image_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

namespace tessera::zoo::image_changes_test {

namespace {

namespace fs = std::filesystem;

fs::path fixture_folder() {
  return fs::path(tests::source_dir()) / "tests/zoo/fixtures/images";
}

const runtime::SafetensorsFile& expected_images() {
  static const auto file =
      runtime::SafetensorsFile::open(fixture_folder() / "images.safetensors");
  return file;
}

/// The largest difference of a value from Pillow's.
int distance(const Image& image, const std::string& name) {
  const auto& expected = expected_images().at(name);
  const std::vector<int64_t> shape{image.size.height, image.size.width, 3};
  EXPECT_EQ(expected.shape, shape) << name;
  int most = expected.shape == shape ? 0 : 256;
  for (size_t i = 0; most < 256 && i < image.pixels.size(); ++i) {
    most = std::max(
        most, std::abs(static_cast<int>(expected.data[i]) - image.pixels[i]));
  }
  return most;
}

Image photo() {
  return read_image(fixture_folder() / "photo.png");
}

Image resized_full(const ImageSize& size, Interpolation interpolation) {
  const Image image = photo();
  return resized(image, {0, 0, image.size}, size, interpolation);
}

template <typename Change>
Image changed(const Change& change) {
  Image image = photo();
  change(image);
  return image;
}

std::string bytes_of_file(const fs::path& path) {
  return runtime::read_text_file(path);
}

} // namespace

TEST(ImageFile, IsDecodedAsByPillow) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fixture_folder())) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors") {
      continue;
    }
    SCOPED_TRACE(name);
    ++files;
    const Image image = read_image(entry.path());
    EXPECT_EQ(check_image(entry.path()), image.size);
    // Versions of libjpeg-turbo round the colors between samples differently.
    EXPECT_LE(distance(image, name), name.ends_with(".jpg") ? 2 : 0);
  }
  EXPECT_EQ(files, 13);
}

TEST(ImageFile, ThatIsCutOffIsRefusedByItsHeaderOrEnd) {
  const TemporaryFolder folder;
  for (const char* name : {"color.jpg", "progressive.jpg", "photo.png"}) {
    SCOPED_TRACE(name);
    const std::string full = bytes_of_file(fixture_folder() / name);
    const fs::path path = folder / name;
    for (size_t length = 0; length < full.size(); length += 7) {
      std::ofstream(path, std::ios::binary) << full.substr(0, length);
      expect_error([&] { check_image(path); }, {name});
      expect_error([&] { read_image(path); }, {name});
    }
  }
  std::ofstream(folder / "empty.png");
  expect_error(
      [&] { check_image(folder / "empty.png"); },
      {"empty.png", "the file is empty"});
  std::ofstream(folder / "text.jpg") << "this is no image at all";
  expect_error(
      [&] { check_image(folder / "text.jpg"); },
      {"text.jpg", "neither a JPEG nor a PNG"});
  expect_error(
      [&] { read_image(folder / "none.jpg"); }, {"none.jpg", "No such file"});
  expect_error([&] { read_image(folder.path()); }, {"Is a directory"});
}

/// A copy of a fixture after a change of its bytes.
template <typename Change>
fs::path changed_file(
    const TemporaryFolder& folder,
    const std::string& name,
    const Change& change) {
  std::string bytes = bytes_of_file(fixture_folder() / name);
  change(bytes);
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return folder / name;
}

// Before 400 MB of memory are allocated for them.
TEST(ImageFile, ThatIsTooShortForItsPixelsIsRefusedByItsHeader) {
  const TemporaryFolder folder;
  const std::string side = {0x2D, 0x41}; // 11585
  for (const auto& [name, marker] :
       {std::pair("color.jpg", "\xff\xc0"),
        std::pair("progressive.jpg", "\xff\xc2")}) {
    SCOPED_TRACE(name);
    const auto file = changed_file(folder, name, [&](std::string& bytes) {
      bytes.replace(bytes.find(marker) + 5, 4, side + side);
    });
    expect_error([&] { check_image(file); }, {name, "bytes are too few"});
    expect_error([&] { read_image(file); }, {"11585 x 11585 pixels"});
  }
  // A width of 16 pixels and a height of 2^19, with the header's checksum.
  const auto png = changed_file(folder, "gray.png", [&](std::string& bytes) {
    bytes.replace(16, 8, std::string({0, 0, 0, 16, 0, 8, 0, 0}));
    bytes.replace(29, 4, "\xea\xab\xb9\x93");
  });
  expect_error([&] { check_image(png); }, {"gray.png", "bytes are too few"});
}

TEST(ImageFile, OfManyScansIsRefused) {
  const TemporaryFolder folder;
  // The first scan again and again, up to the marker behind it.
  const auto with_scans = [&](int more) {
    return changed_file(folder, "progressive.jpg", [&](std::string& bytes) {
      const size_t begin = bytes.find("\xff\xda");
      size_t end = bytes.find('\xff', begin + 2);
      while (bytes[end + 1] == 0) {
        end = bytes.find('\xff', end + 2);
      }
      const std::string scan = bytes.substr(begin, end - begin);
      for (int i = 0; i < more; ++i) {
        bytes.insert(end, scan);
      }
    });
  };
  EXPECT_GT(read_image(with_scans(400)).size.area(), 0);
  expect_error(
      [&] { read_image(with_scans(600)); },
      {"progressive.jpg", "more than 500 scans"});
}

// Any change of a byte is either found or gives some pixels.
TEST(ImageFile, ThatIsDamagedDoesNoHarm) {
  const TemporaryFolder folder;
  int refused = 0;
  for (const char* name : {"color.jpg", "cmyk.jpg", "palette.png"}) {
    const std::string full = bytes_of_file(fixture_folder() / name);
    for (size_t at = 0; at < full.size(); at += 3) {
      std::string damaged = full;
      damaged[at] = static_cast<char>(~damaged[at]);
      std::ofstream(folder / name, std::ios::binary) << damaged;
      try {
        check_image(folder / name);
        read_image(folder / name);
      } catch (const Error& error) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(ImageResize, MakesPillowsBytes) {
  using enum Interpolation;
  EXPECT_EQ(distance(resized_full({6, 8}, kBilinear), "photo.smaller"), 0);
  EXPECT_EQ(distance(resized_full({21, 25}, kBilinear), "photo.larger"), 0);
  EXPECT_EQ(
      distance(resized_full({6, 8}, kBicubic), "photo.smaller_bicubic"), 0);
  EXPECT_EQ(
      distance(resized_full({21, 25}, kBicubic), "photo.larger_bicubic"), 0);
  EXPECT_EQ(
      distance(
          resized(photo(), {3, 5, {9, 11}}, {7, 6}, kBilinear),
          "photo.cropped"),
      0);
  expect_error(
      [&] {
        resized(photo(), {7, 0, {9, 11}}, {7, 6}, kBilinear);
      },
      {"11 x 9", "19 x 15"});
}

TEST(ImageChanges, MakePillowsBytes) {
  const auto expect = [](const char* name, int most, const auto& change) {
    EXPECT_LE(distance(changed(change), std::string("photo.") + name), most)
        << name;
  };
  expect("mirrored", 0, flip_horizontally);
  expect("gray", 0, make_gray);
  expect("solarized", 0, solarize);
  expect("brighter", 0, [](Image& image) { change_brightness(image, 1.3); });
  expect("darker", 0, [](Image& image) { change_brightness(image, 0.6); });
  expect("contrast", 0, [](Image& image) { change_contrast(image, 1.4); });
  expect("flatter", 0, [](Image& image) { change_contrast(image, 0.5); });
  expect("saturated", 0, [](Image& image) { change_saturation(image, 1.4); });
  expect("paler", 0, [](Image& image) { change_saturation(image, 0.4); });
  expect("hue", 0, [](Image& image) { change_hue(image, 0.1); });
  expect("hue_back", 0, [](Image& image) { change_hue(image, -0.3); });
  // Pillow approximates the Gaussian by three boxes.
  expect("blurred", 8, [](Image& image) { blur(image, 1.2); });
  EXPECT_GT(distance(photo(), "photo.blurred"), 20);
}

TEST(ImageViews, CropsAreWithinTheirLimits) {
  const ViewOptions options{.least_area = 0.2, .most_area = 0.5};
  const ImageSize size{200, 300};
  std::set<int64_t> places;
  double least = 1;
  double most = 0;
  for (size_t i = 0; i < 500; ++i) {
    ImageRandom random(7, 0, i, 0);
    const ImageBox box = random_crop(size, options, random);
    const double area =
        static_cast<double>(box.size.area()) / static_cast<double>(size.area());
    const double ratio = static_cast<double>(box.size.width) /
                         static_cast<double>(box.size.height);
    least = std::min(least, area);
    most = std::max(most, area);
    places.insert(box.left);
    EXPECT_GT(ratio, 0.74);
    EXPECT_LT(ratio, 1.35);
    EXPECT_GE(std::min(box.top, box.left), 0);
    EXPECT_LE(box.top + box.size.height, size.height);
    EXPECT_LE(box.left + box.size.width, size.width);
  }
  EXPECT_NEAR(least, 0.2, 0.01);
  EXPECT_NEAR(most, 0.5, 0.01);
  EXPECT_GT(places.size(), 60);
  // No crop of a line has an allowed ratio: its middle is taken.
  ImageRandom random(7, 0, 0, 0);
  EXPECT_EQ(
      random_crop({3, 300}, ViewOptions{}, random), (ImageBox{0, 148, {3, 4}}));
}

// The image is resized first, so that pixels beside what is kept count too.
TEST(ImageResize, CropsTheCenterAsProcessorsDo) {
  using enum Interpolation;
  EXPECT_EQ(
      distance(
          center_cropped(photo(), {8, 8}, 8.0 / 10, kBilinear), "photo.center"),
      0);
  EXPECT_EQ(
      distance(
          center_cropped(photo(), {32, 32}, 32.0 / 37, kBicubic),
          "photo.center_larger"),
      0);
  EXPECT_EQ(
      distance(
          center_cropped(photo(), {7, 12}, 1, kBilinear), "photo.center_wide"),
      0);
  // Of a line 2^20 pixels wide only the middle is computed.
  const Image line({1, 1 << 20});
  EXPECT_EQ(center_cropped(line, {16, 16}, 0.875, kBicubic).size.width, 16);
  expect_error(
      [] {
        center_cropped(Image({1, 1}), {1, 1}, 1.5, kBilinear);
      },
      {"center_cropped", "1.5"});
}

TEST(ImageRandom, DrawsFromBeta) {
  // The mean is 1/2, the variance 1 / (4 (2 alpha + 1)).
  for (const double alpha : {0.01, 0.2, 1.0, 2.0}) {
    SCOPED_TRACE(alpha);
    double sum = 0;
    double squares = 0;
    constexpr int kDraws = 4000;
    for (size_t i = 0; i < kDraws; ++i) {
      const double x = ImageRandom(1, 2, i, 3).beta(alpha);
      EXPECT_GE(x, 0);
      EXPECT_LE(x, 1);
      sum += x - 0.5;
      squares += (x - 0.5) * (x - 0.5);
    }
    // Five standard deviations of the mean of so many draws.
    EXPECT_NEAR(sum / kDraws, 0, 5 * 0.5 / std::sqrt(kDraws));
    EXPECT_NEAR(
        squares / kDraws,
        1 / (4 * (2 * alpha + 1)),
        5 * 0.25 / std::sqrt(kDraws));
  }
}

} // namespace tessera::zoo::image_changes_test
