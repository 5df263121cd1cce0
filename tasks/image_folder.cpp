// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/image_folder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/random/counter_random.h"
#include "tessera/runtime/threads/parallel.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/images/image_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace tessera::tasks {

namespace {

namespace fs = std::filesystem;

/// Files with these names count as images; those that are neither JPEG nor PNG
/// fail the check. Others are not looked at.
constexpr std::array<std::string_view, 14> kImageNames{
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".heic",
    ".avif",
    ".ppm",
    ".pgm"};

bool is_image_name(const fs::path& file) {
  std::string extension = file.extension().string();
  for (char& letter : extension) {
    letter =
        static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return std::find(kImageNames.begin(), kImageNames.end(), extension) !=
         kImageNames.end();
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Adds the images of a folder and of the folders in it.
void add_images_below(
    const fs::path& folder,
    int64_t label,
    std::vector<ImageFolder::File>& images) {
  std::error_code code;
  fs::recursive_directory_iterator at(
      folder, fs::directory_options::follow_directory_symlink, code);
  for (; !code && at != fs::recursive_directory_iterator();
       at.increment(code)) {
    if (is_hidden(at->path())) {
      at.disable_recursion_pending();
    } else if (is_image_name(at->path()) && !at->is_directory()) {
      images.push_back({at->path(), label});
    }
  }
  TESSERA_CHECK(
      !code,
      "cannot read the folder '{}': {}",
      folder.string(),
      code.message());
}

void sort_by_path(std::vector<ImageFolder::File>& images) {
  std::sort(
      images.begin(),
      images.end(),
      [](const ImageFolder::File& a, const ImageFolder::File& b) {
        return a.path.native() < b.path.native();
      });
}

std::string images_text(size_t count) {
  return runtime::count_text(static_cast<int64_t>(count), "image");
}

} // namespace

ImageFolder ImageFolder::read(const fs::path& path, bool has_classes) {
  ImageFolder folder;
  folder.path = path;
  TESSERA_CHECK(
      fs::is_directory(path),
      "'{}' is not a folder; image_folder reads a folder of images{}",
      path.string(),
      has_classes ? " with a subfolder for each class" : "");
  if (!has_classes) {
    add_images_below(path, -1, folder.images);
    sort_by_path(folder.images);
    TESSERA_CHECK(
        !folder.images.empty(),
        "'{}' has no images: no files with names such as *.jpg or *.png",
        path.string());
    return folder;
  }
  std::set<fs::path> subfolders;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (is_hidden(entry.path())) {
      continue;
    }
    if (entry.is_directory()) {
      subfolders.insert(entry.path());
    } else {
      TESSERA_CHECK(
          !is_image_name(entry.path()),
          "'{}' lies outside of the subfolders, whose names are the classes; move it into one of them",
          entry.path().string());
    }
  }
  TESSERA_CHECK(
      !subfolders.empty(),
      "'{}' has no subfolders; image_folder reads one for each class",
      path.string());
  for (const fs::path& subfolder : subfolders) {
    const size_t before = folder.images.size();
    add_images_below(
        subfolder, static_cast<int64_t>(folder.classes.size()), folder.images);
    TESSERA_CHECK(
        folder.images.size() > before,
        "'{}' has no images; add some, or remove this class",
        subfolder.string());
    folder.classes.push_back(subfolder.filename().string());
  }
  sort_by_path(folder.images);
  return folder;
}

ImageFolder ImageFolder::of(const std::vector<std::string>& names) {
  ImageFolder folder;
  for (const fs::path& path : text::matching_files(names)) {
    if (fs::is_directory(path)) {
      const ImageFolder inside = read(path, /*has_classes=*/false);
      folder.images.insert(
          folder.images.end(), inside.images.begin(), inside.images.end());
      continue;
    }
    TESSERA_CHECK(
        fs::exists(path), "'{}': there is no such file", path.string());
    folder.images.push_back({path, -1});
  }
  return folder;
}

void ImageFolder::check(const ImageOptions& options, bool logs) {
  constexpr int64_t kImagesPerTask = 16;
  const auto count = static_cast<int64_t>(images.size());
  std::vector<std::string> errors(images.size());
  runtime::parallel_for(
      0, count, kImagesPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          try {
            const fs::path& file = images[static_cast<size_t>(i)].path;
            zoo::check_image(file);
            if (options.check == ImageCheck::kPixels) {
              zoo::read_image(file);
            }
          } catch (const Error& error) {
            errors[static_cast<size_t>(i)] = error.what();
          }
        }
      });
  const auto bad = static_cast<size_t>(
      std::count_if(errors.begin(), errors.end(), [](const std::string& text) {
        return !text.empty();
      }));
  if (bad == 0) {
    return;
  }
  const std::string& first =
      *std::find_if(errors.begin(), errors.end(), [](const std::string& text) {
        return !text.empty();
      });
  const std::string all = formatted(
      "{}\n  {} of {} are bad", first, bad, images_text(images.size()));
  TESSERA_CHECK(
      options.skip_bad_images,
      "{}: remove or replace them, or leave them out with data.skip_bad_images=true",
      all);
  TESSERA_CHECK(bad < images.size(), "{}: none is left", all);
  if (logs) {
    log_warning("{}, and are skipped (data.skip_bad_images)", all);
  }
  std::vector<File> good;
  for (size_t i = 0; i < images.size(); ++i) {
    if (errors[i].empty()) {
      good.push_back(std::move(images[i]));
    }
  }
  images = std::move(good);
}

void ImageFolder::relabel(const std::vector<std::string>& names) {
  std::vector<int64_t> numbers;
  const auto in_data = zoo::class_names_in_data(names, classes);
  if (const std::string ids = zoo::class_ids_text(names, in_data);
      !ids.empty() && is_log_rank_zero()) {
    log_info("'{}': {}", path.string(), ids);
  }
  for (const std::string& name : classes) {
    const auto found = std::find(in_data.begin(), in_data.end(), name);
    TESSERA_CHECK(
        found != in_data.end(),
        "'{}': the model has no class of this name; its {} classes are {}{}",
        (path / name).string(),
        names.size(),
        runtime::show_json(std::vector<std::string>(
            names.begin(),
            names.begin() + std::min<std::ptrdiff_t>(std::ssize(names), 8))),
        names.size() > 8 ? " and more" : "");
    numbers.push_back(found - in_data.begin());
  }
  for (File& image : images) {
    image.label = numbers.at(static_cast<size_t>(image.label));
  }
  classes = names;
}

ImageFolder ImageFolder::take_heldout(double share) {
  // By class, in an order that is random and that new images do not change.
  std::map<int64_t, std::vector<std::pair<uint64_t, size_t>>> orders;
  for (size_t i = 0; i < images.size(); ++i) {
    const std::string name =
        images[i].path.lexically_relative(path).generic_string();
    orders[images[i].label].emplace_back(stream_of(name), i);
  }
  std::set<size_t> taken;
  for (auto& [label, order] : orders) {
    std::sort(order.begin(), order.end());
    const auto count = std::min<size_t>(
        static_cast<size_t>(
            std::llround(share * static_cast<double>(order.size()))),
        order.size() - 1);
    for (size_t i = 0; i < count; ++i) {
      taken.insert(order[i].second);
    }
  }
  TESSERA_CHECK(
      !taken.empty(),
      "data.heldout_share is {}: of {} in '{}', none is held out",
      share,
      images_text(images.size()),
      path.string());
  ImageFolder heldout;
  heldout.path = path;
  heldout.classes = classes;
  std::vector<File> kept;
  for (size_t i = 0; i < images.size(); ++i) {
    (taken.contains(i) ? heldout.images : kept).push_back(images[i]);
  }
  images = std::move(kept);
  return heldout;
}

} // namespace tessera::tasks
