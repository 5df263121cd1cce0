// SPDX-License-Identifier: Apache-2.0
#pragma once
// All ranks of a job that write or read files together, whatever part of the
// model each of them has.

#include "tessera/engine/checkpoint/part_elements.h"
#include "tessera/sharding/pager.h"
#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

struct FileGroups;

/// Ranks count as in the job; a job whose ranks all have the whole model is
/// one of a single stage and tensor-parallel rank.
class JobRanks {
 public:
  /// @param groups null: every rank has the whole module. Both outlive this
  ///   object.
  JobRanks(Pager& pager, FileGroups* groups, const torch::nn::Module& module);

  int rank() const;
  int size() const;
  int tensor_rank() const;
  int tensor_size() const;
  int stage() const;
  int stages() const;
  /// True on one rank of each stage.
  bool is_first_of_stage() const {
    return pager_.rank() == 0 && tensor_rank() == 0;
  }

  /// What this rank has of a parameter or buffer that is divided over the
  /// tensor-parallel ranks; nothing when it has all of it.
  std::optional<DimPart> part_of(const at::Tensor& tensor) const;
  /// Of what it is part of, or its own.
  std::vector<int64_t> whole_sizes(const at::Tensor& tensor) const;
  /// The whole of a value of `tensor`, on the CPU. Collective over the
  /// tensor-parallel ranks; blocks.
  at::Tensor whole_value(const at::Tensor& tensor, const at::Tensor& value)
      const;

  /// The texts of the stages, each of which says the same on all of its ranks.
  /// Collective; blocks.
  std::vector<std::string> texts_of_stages(const std::string& text);
  /// On the first rank of every stage, `value` becomes that of stage `root`;
  /// elsewhere nothing happens. @param value contiguous, on the CPU. Collective
  /// over those ranks; blocks.
  void broadcast_from_stage(int root, const at::Tensor& value);

  /// Adds up, or takes the largest of, a small CPU tensor, in place.
  /// Collective; blocks.
  void sum(const at::Tensor& values);
  void max(const at::Tensor& values);

  /// Calls `work`; when it throws on some rank, every rank throws. Collective.
  /// @param what heads the error on the ranks where `work` did not throw.
  void on_all_ranks(const std::string& what, const std::function<void()>& work);

 private:
  Pager& pager_;
  FileGroups* groups_;
  std::unordered_map<const c10::TensorImpl*, ParameterPart> parts_;
};

} // namespace tessera
