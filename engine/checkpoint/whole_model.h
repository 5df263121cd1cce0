// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WholeModel` describes the model that the parts of all ranks form and reads
// its whole values, one group of parameters at a time.

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
  /// As on all ranks, without axes; its dtype is that before wrap().
  TensorSpec spec;
  bool is_buffer = false;
  int group = -1; ///< in the pager of its pipeline stage; -1: not sharded

  const std::string& name() const {
    return spec.name();
  }
};

/// All tensors of all pipeline stages and access to their values. Parameters of
/// a pipeline stage have the names that they have in the whole model; tensors
/// of several pipeline stages with the same name are the same. Functions marked
/// collective are called by all ranks of the job.
class WholeModel {
 public:
  /// Collective. The module and its engine must outlive this object.
  /// @throws tessera::Error on every rank if pipeline stages disagree about a
  ///   tensor.
  WholeModel(engine::JobRanks job, const torch::nn::Module& module);
  /// Of a module that is not wrapped; the ranks are those of the group that
  /// divides its layers, if there is one. Not collective.
  /// @throws tessera::Error if the module is wrapped.
  explicit WholeModel(const torch::nn::Module& module);

  engine::JobRanks& job() {
    return job_;
  }
  const engine::JobRanks& job() const {
    return job_;
  }
  /// By pipeline stage; the same on every rank.
  const std::vector<WholeTensor>& tensors() const {
    return tensors_;
  }
  /// Null if no pipeline stage has a tensor of that name.
  const WholeTensor* find(const std::string& name) const;
  /// The names of all parameters, including all names of tied ones.
  std::vector<std::string> parameter_names() const;

  /// Calls `visit` on rank 0 of the job with every tensor and its value (on the
  /// CPU, contiguous, valid during the call); with master weights, the value is
  /// theirs; of a lazy tensor, what it will be filled with. No rank holds more
  /// than one of its groups and one whole parameter. Collective; blocks.
  /// @throws tessera::Error on every rank if `visit` throws.
  /// @param wants selects the tensors, the same ones on every rank; empty: all.
  void for_each(
      const std::function<void(const WholeTensor&, const at::Tensor&)>& visit,
      const std::function<bool(const WholeTensor&)>& wants = {});

 private:
  /// This rank's part of a tensor.
  struct Own {
    at::Tensor tensor;
    size_t position = 0; ///< in its group
  };

  void add_own(const torch::nn::Module& module);
  void join_stages();
  /// @param values of the group, if it belongs to this pipeline stage.
  at::Tensor whole_value(const WholeTensor& tensor, const at::Tensor& values);

  engine::JobRanks job_;
  std::vector<WholeTensor> tensors_;
  std::map<std::string, size_t> index_; ///< by every name
  std::map<std::string, Own> own_; ///< by first name
};

} // namespace tessera
