// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JobRanks` numbers the ranks of a job that write or read files together,
// whichever part of the model each of them has.

#include "tessera/sharding/pager.h"
#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::engine {

struct FileGroups;

/// Ranks are numbered as in the job; if the module is not wrapped, in the
/// tensor-parallel group of its layers. If all ranks have the whole model,
/// there is one pipeline stage and one tensor-parallel rank.
class JobRanks {
 public:
  /// @param groups null: every rank has the whole module. Both must outlive
  ///   this object.
  JobRanks(
      sharding::Pager& pager,
      FileGroups* groups,
      const torch::nn::Module& module);

  /// The ranks of a module that is not wrapped, which must outlive this object.
  explicit JobRanks(const torch::nn::Module& module);

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  int tensor_rank() const;
  int tensor_size() const;
  int stage() const;
  int stages() const;
  /// True on one rank of each pipeline stage.
  bool is_first_of_stage() const;

  /// Null if the module is not wrapped.
  sharding::Pager* pager() const {
    return pager_;
  }

  /// The spec of a parameter or buffer of the module, as the tensor-parallel
  /// ranks divide it.
  TensorSpec spec_of(const at::Tensor& tensor) const;
  /// The whole value of `tensor`, on the CPU. Collective over the
  /// tensor-parallel ranks; blocks.
  at::Tensor whole_value(const at::Tensor& tensor, const at::Tensor& value)
      const;

  /// The texts of all pipeline stages; each must be the same on all ranks of
  /// its pipeline stage. Collective; blocks.
  std::vector<std::string> texts_of_stages(const std::string& text);
  /// On the first rank of every pipeline stage, broadcasts the `value` of
  /// pipeline stage `root`; does nothing on other ranks. Collective over the
  /// first ranks; blocks.
  /// @param value contiguous, on the CPU.
  void broadcast_from_stage(int root, const at::Tensor& value);

  /// All-reduce a small CPU tensor in place, to the sum or the maximum.
  /// Collective; blocks.
  void sum(const at::Tensor& values);
  void max(const at::Tensor& values);

  /// Calls `work`; if it throws on some rank, every rank throws. Collective.
  /// @param what begins the message on the ranks where `work` did not throw.
  void on_all_ranks(const std::string& what, const std::function<void()>& work);

 private:
  void forget_unknown_ranks();
  WaitCheck watch() const;

  sharding::Pager* pager_ = nullptr;
  Communicator* tensor_ = nullptr; ///< null: nothing is divided
  Communicator* pipeline_ = nullptr; ///< null: one pipeline stage
  int rank_ = 0;
  int size_ = 1;
  TensorSpecs specs_;
};

} // namespace tessera::engine
