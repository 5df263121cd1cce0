// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a job's model is made of when the parts of all its ranks are put
// together, and its whole values, one group of parameters at a time.

#include "tessera/engine/checkpoint/job_ranks.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A parameter or a registered buffer of the whole model.
struct WholeTensor {
  std::vector<std::string> names; ///< several if it is tied; not empty
  at::ScalarType dtype = at::kFloat; ///< outside of the engine
  std::vector<int64_t> sizes;
  bool is_buffer = false;
  int stage = 0; ///< the first one that has it
  int group = -1; ///< of that stage's pager; -1: the engine leaves it alone

  const std::string& name() const {
    return names.front();
  }
};

/// All tensors of all stages and how to get at them. Parameters of a stage have
/// the names that they have in the whole model; what several stages have under
/// one name is the same. Functions marked collective are called by all ranks of
/// the job.
class WholeModel {
 public:
  /// Collective. The arguments outlive this object.
  /// @throws tessera::Error on every rank when stages differ about a tensor.
  WholeModel(JobRanks job, Pager& pager, const torch::nn::Module& module);

  JobRanks& job() {
    return job_;
  }
  const JobRanks& job() const {
    return job_;
  }
  /// Stage by stage; the same on every rank.
  const std::vector<WholeTensor>& tensors() const {
    return tensors_;
  }
  /// Null when no stage has a tensor of that name.
  const WholeTensor* find(const std::string& name) const;
  /// All names of parameters.
  std::vector<std::string> parameter_names() const;

  /// Calls `visit` on rank 0 of the job with every tensor and its value (on the
  /// CPU, contiguous, valid during the call); parameters with master weights
  /// have their values. No rank holds more than a group of its own and a whole
  /// parameter. Collective; blocks.
  /// @throws tessera::Error on every rank when `visit` throws.
  void for_each(
      const std::function<void(const WholeTensor&, const at::Tensor&)>& visit);

 private:
  /// What this rank has for a tensor.
  struct Own {
    at::Tensor tensor;
    size_t position = 0; ///< in its group
  };

  void add_own(const torch::nn::Module& module);
  void join_stages();
  /// @param values of the group when it is this stage's.
  at::Tensor whole_value(const WholeTensor& tensor, const at::Tensor& values);

  JobRanks job_;
  Pager& pager_;
  std::vector<WholeTensor> tensors_;
  std::map<std::string, size_t> index_; ///< by every name
  std::map<std::string, Own> own_; ///< by first name
};

/// What the engine leaves alone: a module's buffers, and parameters that are
/// whole on the ranks that have them. By name, tied ones once.
std::vector<std::pair<std::string, at::Tensor>> unpaged_tensors_of(
    const torch::nn::Module& module);

} // namespace tessera
