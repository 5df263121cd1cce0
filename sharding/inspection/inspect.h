// SPDX-License-Identifier: Apache-2.0
#pragma once
// `inspect_model()` and `inspect_tensor()` compute tables of statistics of
// parameters, gradients and recorded hidden states.

#include "tessera/sharding/inspection/tensor_recorder.h"
#include "tessera/sharding/inspection/tensor_statistics.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

class Pager;

} // namespace tessera::sharding

namespace tessera {

/// A row of the table.
struct TensorSummary {
  std::string name;
  std::vector<int64_t> sizes; ///< of a hidden state: on this rank
  sharding::TensorStatistics value;
  std::optional<sharding::TensorStatistics> gradient;
};

/// Summarizes parameters and gradients of a module that is not wrapped.
/// @param pattern regular expression (ECMAScript) that matches whole names.
/// @throws tessera::Error when no name matches.
std::vector<TensorSummary> inspect_model(
    const torch::nn::Module& module,
    const std::string& pattern = ".*");

/// As above for sharded parameters, computed from the shards; nothing is
/// gathered. Gradients are divided by `gradient_scale`; before a step they are
/// averages over the ranks. Of divided experts, each rank has the rows of its
/// own, also where `pattern` matches the names of those on another rank alone.
/// The rows are those of this pipeline stage. Collective over its ranks, and
/// over those of all pipeline stages if they share parameters.
std::vector<TensorSummary> inspect_model(
    sharding::Pager& pager,
    const std::string& pattern,
    double gradient_scale);

/// Summarizes the tensors recorded in this process.
std::vector<TensorSummary> inspect_tensor(const TensorRecorder& recorder);

/// Summarizes the tensors recorded on all ranks, each as one tensor.
/// Collective.
std::vector<TensorSummary> inspect_tensor(
    sharding::Pager& pager,
    const TensorRecorder& recorder,
    double gradient_scale);

/// Formats a table with one row per tensor and aligned columns; "-" where there
/// is no gradient.
std::string format_summary(const std::vector<TensorSummary>& summary);

} // namespace tessera
