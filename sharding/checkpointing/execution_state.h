// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RandomState` and `AutocastState` capture what a forward depends on apart
// from its arguments, so that it can be repeated.

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// States of the default generators of the CPU and of some accelerators.
class RandomState {
 public:
  RandomState() = default;
  /// Captures the state of the CPU generator and that of every accelerator that
  /// is among `devices` or has one of `tensors`. The state of a CUDA generator
  /// is in host memory: nothing synchronizes.
  static RandomState take(
      const std::vector<at::Tensor>& tensors,
      const std::vector<c10::Device>& devices);
  void put_back() const;
  /// Captures the current states of the same generators.
  RandomState now() const;

 private:
  void add(c10::Device device);

  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// Whether autocast is enabled, and its dtype, for the CPU and accelerators.
class AutocastState {
 public:
  static AutocastState take();
  /// @param cache whether autocast caches casts of weights.
  void put_back(bool cache) const;
  bool cache() const {
    return cache_;
  }

 private:
  struct PerDevice {
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };
  static constexpr std::array kDevices{at::kCPU, at::kCUDA, at::kPrivateUse1};
  std::array<PerDevice, kDevices.size()> devices_;
  bool cache_ = true;
};

/// Gives buffers back the values that they had when it was made: running
/// statistics, such as BatchNorm's, count a forward once.
class BufferScope {
 public:
  explicit BufferScope(std::vector<at::Tensor> buffers);
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> values_;
};

/// Restores captured generator and autocast states while it is alive, and the
/// previous states afterwards.
class ExecutionStateScope {
 public:
  ExecutionStateScope(const RandomState& random, const AutocastState& autocast);
  ~ExecutionStateScope();
  ExecutionStateScope(const ExecutionStateScope&) = delete;
  ExecutionStateScope& operator=(const ExecutionStateScope&) = delete;

 private:
  RandomState random_before_;
  AutocastState autocast_before_;
};

/// Disables autocast's cache of casted weights while it is alive. Otherwise the
/// recomputation would use casts that were cached without gradients in the
/// first forward.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

} // namespace tessera::sharding
