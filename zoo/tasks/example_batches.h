// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleBatches` makes batches of any model's inputs from examples in files.

#include "tessera/zoo/tasks/example_draws.h"
#include "tessera/zoo/tasks/example_files.h"
#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/trained_head.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// (pixel * scale - mean) / std.
struct PixelOptions {
  std::optional<double> scale; ///< not given: 1 / 255 for bytes, else 1
  std::vector<double> mean; ///< per channel, or one for all; empty: 0
  std::vector<double> std; ///< likewise; empty: 1
};

void visit_fields(runtime::OptionFields& fields, PixelOptions& options);

struct ExampleOptions {
  /// Drops positions that are padding in all rows of a batch, and masks that
  /// mask nothing.
  bool trim_padding = true;
  PixelOptions pixels;
  /// Masks tokens and makes labels from them, instead of using the file's
  /// labels.
  std::optional<TokenMaskOptions> token_mask;
  double patch_mask = 0.6; ///< fraction of patches, if the file has no masks
  uint64_t seed = 0; ///< of the random masks
  /// Sequence lengths must be a multiple of this, because ranks divide them.
  int64_t sequence_multiple = 1;
};

/// Copies rows of files, widens their numbers and adds derived inputs: labels
/// of language models (input_ids, if the file has none), and masks of tokens
/// and patches.
class ExampleBatches {
 public:
  /// @param files outlive this.
  /// @throws tessera::Error naming file, tensor, what was found and what the
  ///     model expects: on missing or unknown tensors, on wrong types or
  ///     shapes, and on labels of examples outside of the classes.
  ExampleBatches(
      const ExampleFiles& files,
      TrainedHead head,
      ExampleOptions options,
      c10::Device device);

  /// @param loss_only see ModelInput.
  /// @throws tessera::Error naming the file and the tensor if token ids are
  ///     outside of the vocabulary or token labels outside of the classes; if
  ///     no example of a training batch has a label.
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const;

  const TrainedHead& head() const {
    return head_;
  }

 private:
  zoo::NamedTensors read(const std::vector<size_t>& examples) const;
  void check_values(const zoo::NamedTensors& batch) const;
  void trim(zoo::NamedTensors& batch) const;
  void add_masks(
      zoo::NamedTensors& batch,
      const std::vector<size_t>& examples,
      int64_t epoch) const;

  bool has_labels(const zoo::NamedTensors& batch) const;

  const ExampleFiles& files_;
  TrainedHead head_;
  ExampleOptions options_;
  c10::Device device_;
};

} // namespace tessera::zoo
