// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables of what is in a model: parameters, gradients, recorded hidden states.

#include "tessera/sharding/tensor_recorder.h"
#include "tessera/sharding/tensor_statistics.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

class Pager;

/// A line of the table.
struct TensorSummary {
  std::string name;
  std::vector<int64_t> sizes; ///< of a hidden state: on this rank
  TensorStatistics value;
  std::optional<TensorStatistics> gradient;
};

/// Parameters and gradients of a module that is not wrapped.
/// @param pattern regular expression (ECMAScript) that matches whole names.
/// @throws tessera::Error when it matches none.
std::vector<TensorSummary> inspect_model(
    const torch::nn::Module& module,
    const std::string& pattern = ".*");

/// The same of paged ones, from the shards: nothing is gathered. Gradients are
/// divided by `gradient_scale`; those of before a step are averages over the
/// ranks. Collective.
std::vector<TensorSummary> inspect_model(
    Pager& pager,
    const std::string& pattern,
    double gradient_scale);

/// What was recorded in this process.
std::vector<TensorSummary> inspect_tensor(const TensorRecorder& recorder);

/// What was recorded on all ranks, as one tensor each. Collective.
std::vector<TensorSummary> inspect_tensor(
    Pager& pager,
    const TensorRecorder& recorder,
    double gradient_scale);

/// A table with a line each, columns aligned, "-" where there is no gradient.
std::string format_summary(const std::vector<TensorSummary>& summary);

} // namespace tessera
