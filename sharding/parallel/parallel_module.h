// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelModule` is the base class of tensor-parallel layers: it registers
// parameters of which each rank has a partition.

#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/parallel/tensor_parallel.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

/// A module some of whose parameters are partitioned over a tensor-parallel
/// group. They are distributed parameters whose values come from
/// init_parameters(), by name: the same values as in the whole parameter, for
/// any number of ranks.
class ParallelModule : public DistributedModule {
 public:
  const TensorParallel& how() const {
    return how_;
  }
  /// Partitioned parameters of this module (not of its children), by name.
  const std::map<std::string, TensorSpec>& specs() const {
    return specs_;
  }

 protected:
  /// @throws tessera::Error when `how` has no group.
  explicit ParallelModule(const TensorParallel& how);

  /// Registers this rank's partition of a parameter of `sizes`.
  at::Tensor register_part(
      const std::string& name,
      std::vector<int64_t> sizes,
      const Shard& placement,
      InitMethod init,
      const DistributedParameterOptions& options);

  /// Registers a parameter that is whole on every rank.
  at::Tensor register_whole(
      const std::string& name,
      at::IntArrayRef sizes,
      InitMethod init,
      const DistributedParameterOptions& options);

 private:
  TensorParallel how_;
  std::map<std::string, TensorSpec> specs_;
};

/// A tensor of the whole model as the tensor-parallel ranks divide it.
TensorSpec tensor_parallel_spec(
    std::string name,
    std::vector<int64_t> sizes,
    at::ScalarType dtype,
    const Shard& placement,
    const Communicator& group);

/// Returns the group that divides the layers of `module`; null if none does.
Communicator* tensor_group_of(const torch::nn::Module& module);

/// Specs of parameters and buffers.
using TensorSpecs = std::unordered_map<const c10::TensorImpl*, TensorSpec>;

/// Returns the specs of all parameters and registered buffers in `module`,
/// including its own. Those that no parallel module and no tensor plan
/// partitions are whole on every rank.
TensorSpecs specs_in(const torch::nn::Module& module);

/// Returns the spec of a tensor; for one that is not in `specs`, that of a
/// tensor that is whole on every rank.
TensorSpec spec_of(const at::Tensor& tensor, const TensorSpecs& specs);

} // namespace tessera
