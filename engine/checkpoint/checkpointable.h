// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Checkpointable` adds state other than parameters and optimizer state to a
// checkpoint.

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace tessera {

/// The saved state of one object.
struct CheckpointState {
  nlohmann::json values; ///< small: counters, positions
  std::map<std::string, at::Tensor> tensors; ///< dense, on any device
};

/// An object whose state is saved and loaded with an engine: a schedule, the
/// position in the data, a random number generator.
class Checkpointable {
 public:
  virtual ~Checkpointable() = default;

  /// The name of the state in the checkpoint; unique there.
  virtual std::string name() const = 0;

  /// Whether every rank has its own state. If not, the state of rank 0 is
  /// saved, and loaded on all ranks; to save is an error, on all ranks, if one
  /// has another. (A state that is passed on rank 0 alone is rank 0's.) When
  /// loaded on another number of ranks, a
  /// rank gets the state of the rank with the same number or, if there is none,
  /// keeps its own. With another number of tensor-parallel ranks,
  /// tensor-parallel groups take the place of ranks, and all ranks of a group
  /// get the state of the first rank of the saved group.
  virtual bool is_per_rank() const {
    return false;
  }

  /// Whether a checkpoint without this state may be loaded, which leaves the
  /// object as it is.
  virtual bool is_optional() const {
    return false;
  }

  /// Called on every rank that passes the object. Must not be collective.
  virtual CheckpointState save_state() const = 0;
  virtual void load_state(const CheckpointState& state) = 0;
};

} // namespace tessera
