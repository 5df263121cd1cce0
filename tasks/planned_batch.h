// SPDX-License-Identifier: Apache-2.0
#pragma once
// `planned_batch()` makes a batch of the largest shape that a run has, with the
// inputs that its task's batches have, without its data.

#include "tessera/tasks/training_config.h"
#include "tessera/zoo/inputs/model_input.h"
#include "tessera/zoo/models/model.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// `rows` texts of `length` tokens each, or images of the size that the model
/// was made for, with the labels of the model's head. Values mean nothing.
/// @param masks texts are padded, so that there is an attention_mask.
/// @throws tessera::Error on a model without head.
zoo::ModelInput largest_batch(
    zoo::Model& model,
    int64_t rows,
    int64_t length,
    bool masks);

struct PlannedBatch {
  zoo::ModelInput input;
  std::vector<std::string> notes; ///< what is assumed of it
  /// What making it takes besides, in host memory: images as they are read, and
  /// those that are mixed with them.
  int64_t making_bytes = 0;
};

/// A micro-batch of training.batch_size examples, on the CPU. Reads data.train
/// of the task `examples` alone, if it is there.
/// @param model that the run trains, not divided among ranks.
/// @param source its config.json.
/// @throws tessera::Error on a model that the task cannot train.
PlannedBatch planned_batch(
    const TrainingConfig& config,
    zoo::Model& model,
    const nlohmann::json& source);

/// Whether all micro-batches have as many labels, as far as is known without
/// data; see zoo::DataSet::has_equal_labels().
bool has_equal_labels(const TrainingConfig& config, zoo::Model& model);

/// Bytes of its tensors.
int64_t bytes_of(const zoo::ModelInput& batch);

} // namespace tessera::tasks
