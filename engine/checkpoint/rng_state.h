// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RngState` saves LibTorch's default random number generators in a checkpoint.

#include "tessera/engine/checkpoint/checkpointable.h"

namespace tessera::engine {

/// The CPU's generator and, if there is an accelerator, that of its current
/// device.
class RngState : public Checkpointable {
 public:
  std::string name() const override;
  bool is_per_rank() const override {
    return true;
  }
  CheckpointState save_state() const override;
  void load_state(const CheckpointState& state) override;
};

} // namespace tessera::engine
