// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JobRanks` connects the ranks of a job that write or read files together,
// whichever part of the model each of them has.

#include "tessera/engine/checkpoint/model_parts.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera::engine {

/// Ranks are numbered as in the job; if the module is not wrapped, in the
/// tensor-parallel group of its layers. Their communicators are for CPU tensors
/// and for files only: whole parameters pass through them, and the small
/// messages of a step must not wait for those.
class JobRanks {
 public:
  /// Every rank has the whole model.
  /// @param pager must outlive this object.
  explicit JobRanks(sharding::Pager& pager);
  /// Collective over the ranks that hold one replica of the model; blocks until
  /// all have called it.
  /// @param world of the job.
  /// @param pager must outlive this object.
  JobRanks(World& world, const ParallelMesh& mesh, sharding::Pager& pager);
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
  /// Whether the partitions of tensor-parallel ranks can be gathered.
  bool knows_tensor_ranks() const {
    return tensor_ != nullptr;
  }

  ModelParts& stages() {
    return stages_;
  }
  const ModelParts& stages() const {
    return stages_;
  }
  /// Null if experts are not divided.
  ModelParts* experts() {
    return experts_ ? &*experts_ : nullptr;
  }
  const ModelParts* experts() const {
    return experts_ ? &*experts_ : nullptr;
  }
  /// Whether this rank's pager takes part when a page of part `number` is
  /// gathered: all ranks with the same layers do, whichever experts they have.
  bool gathers_with(const ModelParts& parts, int number) const;
  /// The ranks that together have all parameters; null: each rank has them.
  Communicator* whole_model() const;

  /// Null if the module is not wrapped.
  sharding::Pager* pager() const {
    return pager_;
  }
  WaitCheck watch() const;

  /// The whole value of a tensor, on the CPU. Collective over the
  /// tensor-parallel ranks; blocks.
  /// @param value on this rank.
  at::Tensor whole_value(const TensorSpec& spec, const at::Tensor& value) const;

  /// All-reduce a small CPU tensor in place, to the sum or the maximum.
  /// Collective; blocks.
  void sum(const at::Tensor& values);
  void max(const at::Tensor& values);

  /// Calls `work`; if it throws on some rank, every rank throws. Collective.
  /// @param what begins the message on the ranks where `work` did not throw.
  void on_all_ranks(const std::string& what, const std::function<void()>& work);

 private:
  JobRanks(
      World& world,
      const ParallelMesh& mesh,
      sharding::Pager& pager,
      const std::string& key);

  sharding::Pager* pager_ = nullptr;
  std::unique_ptr<Communicator> own_tensor_; ///< of a wrapped module
  Communicator* tensor_ = nullptr; ///< null: nothing is divided
  int rank_ = 0;
  int size_ = 1;
  ModelParts stages_;
  std::optional<ModelParts> experts_; ///< if they are divided
};

} // namespace tessera::engine
