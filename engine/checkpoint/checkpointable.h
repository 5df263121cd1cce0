// SPDX-License-Identifier: Apache-2.0
#pragma once
// State beside parameters and optimizers that a checkpoint keeps.

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace tessera {

/// What one object wants to be remembered.
struct CheckpointState {
  nlohmann::json values; ///< small: counters, positions
  std::map<std::string, at::Tensor> tensors; ///< dense, on any device
};

/// Something whose state is saved and loaded with an engine: a schedule, the
/// position in the data, a generator of random numbers.
class Checkpointable {
 public:
  virtual ~Checkpointable() = default;

  /// Names the state in the checkpoint; unique there.
  virtual std::string name() const = 0;

  /// True when every rank has a state of its own. Else rank 0's is kept, and
  /// given to all. Under another number of ranks a rank gets the state of the
  /// rank with its number, or else keeps what it has. With another number of
  /// tensor-parallel ranks, groups of them count in place of ranks, and all
  /// ranks of a group get the state of the other one's first.
  virtual bool is_per_rank() const {
    return false;
  }

  virtual CheckpointState save_state() const = 0;
  virtual void load_state(const CheckpointState& state) = 0;
};

} // namespace tessera
