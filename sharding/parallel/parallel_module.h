// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tensor-parallel layers have in common: parameters of which each rank has
// a part.

#include "tessera/sharding/distributed_parameter.h"
#include "tessera/sharding/parallel/dim_split.h"
#include "tessera/sharding/parallel/tensor_parallel.h"

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

/// Which part of a parameter a rank has.
struct ParameterPart {
  int64_t dim = 0; ///< that is divided
  DimSplit split; ///< over the tensor-parallel group
};

/// A module some of whose parameters are divided over a tensor-parallel group.
/// They are declared and get values from init_parameters(), by name: the same
/// numbers that the whole would have, however many ranks there are.
class ParallelModule : public DistributedModule {
 public:
  const TensorParallel& how() const {
    return how_;
  }
  /// Of its own parameters, those that are divided, by name.
  const std::map<std::string, ParameterPart>& parts() const {
    return parts_;
  }

 protected:
  /// @throws tessera::Error when `how` has no group.
  explicit ParallelModule(const TensorParallel& how);

  /// Registers this rank's part of a parameter of `sizes`.
  at::Tensor register_part(
      const std::string& name,
      std::vector<int64_t> sizes,
      const ParameterPart& part,
      InitMethod init,
      const DistributedParameterOptions& options);

  /// Registers a parameter that every rank has whole.
  at::Tensor register_whole(
      const std::string& name,
      at::IntArrayRef sizes,
      InitMethod init,
      const DistributedParameterOptions& options);

 private:
  TensorParallel how_;
  std::map<std::string, ParameterPart> parts_;
};

/// All divided parameters in `module`, itself included: of parallel modules,
/// and those that a tensor plan has divided. What is not in it is
/// whole on every rank.
std::unordered_map<const c10::TensorImpl*, ParameterPart> parts_in(
    const torch::nn::Module& module);

} // namespace tessera
