// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageFolder` lists the images of a folder that has a subfolder per class, as
// torchvision's ImageFolder.

#include "tessera/tasks/image_options.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks {

struct ImageFolder {
  struct File {
    std::filesystem::path path;
    int64_t label = -1; ///< index into `classes`
  };

  std::filesystem::path path;
  std::vector<std::string> classes; ///< names of the subfolders, sorted
  std::vector<File> images; ///< sorted by their paths

  /// @param has_classes false: images may also lie in the folder itself, and
  ///     have no label.
  /// @throws tessera::Error if there are no images; with classes, if one has
  ///     none, or if there are images outside of the subfolders.
  static ImageFolder read(const std::filesystem::path& path, bool has_classes);

  /// Images without labels.
  /// @param names of files, of folders with images in them, and patterns; see
  ///     matching_files().
  /// @throws tessera::Error naming what does not exist, and a folder without
  ///     images.
  static ImageFolder of(const std::vector<std::string>& names);

  /// Checks all images, many at a time. Blocks on the disk.
  /// @param logs whether the number of bad images is logged.
  /// @throws tessera::Error naming a bad image, unless they are skipped.
  void check(const ImageOptions& options, bool logs);

  /// Numbers the labels by these names instead.
  /// @throws tessera::Error naming a class that is not among them.
  void relabel(const std::vector<std::string>& names);

  /// Moves a fraction of each class to a folder of its own; at least one image
  /// stays. A function of the images' names.
  ImageFolder take_heldout(double share);
};

} // namespace tessera::tasks
