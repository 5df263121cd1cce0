// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelModule` is the base class of tensor-parallel layers: it registers
// parameters of which each rank has a partition.

#include "tessera/sharding/distributed_parameter.h"
#include "tessera/sharding/parallel/dim_split.h"
#include "tessera/sharding/parallel/tensor_parallel.h"

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

/// `ParameterPart` describes how a parameter is partitioned.
struct ParameterPart {
  int64_t dim = 0; ///< dimension that is partitioned
  sharding::DimSplit split; ///< over the tensor-parallel group
};

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
  const std::map<std::string, ParameterPart>& parts() const {
    return parts_;
  }

 protected:
  /// @throws tessera::Error when `how` has no group.
  explicit ParallelModule(const TensorParallel& how);

  /// Registers this rank's partition of a parameter of `sizes`.
  at::Tensor register_part(
      const std::string& name,
      std::vector<int64_t> sizes,
      const ParameterPart& part,
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
  std::map<std::string, ParameterPart> parts_;
};

/// Partitioned parameters and how they are partitioned.
using ParameterParts =
    std::unordered_map<const c10::TensorImpl*, ParameterPart>;

/// Returns all partitioned parameters in `module`, including its own: those of
/// parallel modules and those partitioned by a tensor plan. All other
/// parameters are whole on every rank.
ParameterParts parts_in(const torch::nn::Module& module);

/// Returns the sizes of the whole parameter that `parameter` is, or is a
/// partition of according to `parts`.
std::vector<int64_t> whole_sizes(
    const at::Tensor& parameter,
    const ParameterParts& parts);

} // namespace tessera
