// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WholeModel` describes the model that the parts of all ranks form and reads
// its whole values, one group of parameters at a time.

#include "tessera/engine/checkpoint/job_ranks.h"
#include "tessera/sharding/parallel/parallel_module.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A parameter or a registered buffer of the whole model.
struct WholeTensor {
  /// As on all ranks, without axes; its dtype is that before wrap().
  TensorSpec spec;
  bool is_buffer = false;
  bool of_experts = false; ///< of divided ones
  /// The first one that has it: a pipeline stage or, of_experts, one of
  /// JobRanks::experts(), of which each pipeline stage has several.
  int part = 0;
  int group = -1; ///< in the pager of its pipeline stage; -1: not sharded

  const std::string& name() const {
    return spec.name();
  }
};

/// All tensors of all pipeline stages and experts and access to their values.
/// Parameters of a pipeline stage have the names that they have in the whole
/// model; tensors of several pipeline stages with the same name are the same.
/// Functions marked collective are called by all ranks of the job.
class WholeModel {
 public:
  /// Of a wrapped module. Collective.
  /// @param job must outlive this object, as must the module.
  /// @throws tessera::Error on every rank if pipeline stages disagree about a
  ///   tensor.
  WholeModel(engine::JobRanks& job, const torch::nn::Module& module);
  /// Of a module that is not wrapped; the ranks are those of the group that
  /// divides its layers, if there is one. Not collective.
  /// @throws tessera::Error if the module is wrapped.
  explicit WholeModel(const torch::nn::Module& module);

  engine::JobRanks& job() {
    return *job_;
  }
  const engine::JobRanks& job() const {
    return *job_;
  }
  /// The parts that the tensor is in one of.
  const engine::ModelParts& parts_of(const WholeTensor& tensor) const {
    return tensor.of_experts ? *job_->experts() : job_->stages();
  }
  /// The spec of a parameter or buffer of the module, as the tensor-parallel
  /// ranks divide it.
  TensorSpec spec_of(const at::Tensor& tensor) const;
  /// By pipeline stage and group, those of divided experts last; the same on
  /// every rank.
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

  void take_specs(const torch::nn::Module& module);
  /// This rank's tensors.
  std::vector<WholeTensor> take_own(const torch::nn::Module& module);
  /// Lists the tensors of all parts.
  /// @param mine those of this rank, of which others may belong to other parts.
  void join_parts(const std::vector<WholeTensor>& mine, bool of_experts);
  /// Brings the tensors of a group of experts together, of all parts.
  void sort_by_group();
  int stage_of(int part, bool of_experts) const;
  engine::ModelParts& parts(bool of_experts);
  /// @param values of the group, if it belongs to this part.
  at::Tensor whole_value(const WholeTensor& tensor, const at::Tensor& values);

  std::unique_ptr<engine::JobRanks> alone_; ///< of a module not wrapped
  engine::JobRanks* job_;
  TensorSpecs specs_;
  std::vector<WholeTensor> tensors_;
  std::map<std::string, size_t> index_; ///< by every name
  std::map<std::string, Own> own_; ///< by first name
};

} // namespace tessera
