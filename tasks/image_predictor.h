// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImagePredictor` classifies image files with a trained model.

#include "tessera/tasks/class_values.h"
#include "tessera/tasks/image_folder.h"
#include "tessera/tasks/trained_model.h"

#include <c10/core/Device.h>

#include <vector>

namespace tessera::tasks {

class ImagePredictor {
 public:
  /// Gives the model memory on the device.
  /// @throws tessera::Error if it does not classify images.
  ImagePredictor(TrainedModel trained, c10::Device device);

  const ClassLabels& labels() const {
    return labels_;
  }

  /// The images of files, folders and patterns, whose headers are checked; all
  /// of their pixels if bad ones are skipped (data.skip_bad_images).
  /// @throws tessera::Error as ImageFolder::of() and ImageFolder::check().
  std::vector<ImageFolder::File> images_of(
      const std::vector<std::string>& names) const;

  /// Decodes images, as they are for a score, and classifies them; see
  /// class_values().
  /// @throws tessera::Error naming a file that cannot be decoded.
  std::vector<std::vector<double>> predict(
      const std::vector<ImageFolder::File>& images) const;

 private:
  ClassLabels labels_;
  TrainedModel trained_;
  c10::Device device_;
};

} // namespace tessera::tasks
