// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageBatches` makes batches of the images of a folder.

#include "tessera/tasks/image_folder.h"
#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/example_options.h"

#include <memory>

namespace tessera::tasks {

/// Decodes the images of a batch on LibTorch's intra-op threads, and makes
/// their views: one, or two for heads that take them, drawn anew for each image
/// and epoch. Images that are scored get their middle part, or two views that
/// are the same each time.
class ImageBatches : public zoo::DataSet {
 public:
  /// @param head outlives this.
  /// @param images completed, see complete_from_preprocessor().
  /// @param examples the pixels, the seed, and what else heads draw.
  /// @throws tessera::Error if the model does not take images of 1 or 3
  ///     channels; if mix-up is asked for without classes.
  ImageBatches(
      ImageFolder folder,
      const zoo::Head& head,
      const ImageOptions& images,
      const zoo::ExampleOptions& examples);

  size_t size() const override {
    return folder_.images.size();
  }
  std::string text() const override;
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool has_equal_labels() const override {
    return true;
  }
  bool measures_metric() const override {
    return has_classes_;
  }
  TaskScore report(const zoo::Score& score) const override;

 private:
  struct Decoding;

  at::Tensor decoded(
      const std::vector<Decoding>& images,
      int64_t views,
      int64_t epoch) const;
  void add_mixed(
      zoo::NamedTensors& batch,
      const std::vector<size_t>& examples,
      int64_t epoch) const;

  ImageFolder folder_;
  const zoo::Head& head_;
  ImageOptions options_;
  zoo::ExampleOptions examples_;
  ViewRecipe recipe_;
  bool has_classes_;
};

} // namespace tessera::tasks
